// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "device_storage.hpp"

#include <atomic>
#include <mutex>

#include "apex/core/cuda.hpp"

namespace apex::cuda {
namespace {

struct Late {
  void* data;
  std::size_t bytes;
  Context ctx;
};

/// Blocks dropped while their stream was captured; a graph must not free what it did not make.
struct LateBlocks {
  std::mutex mutex;
  std::vector<Late> blocks;
  std::atomic<bool> any{false};
};

LateBlocks& late_blocks() {
  static auto* const instance = new LateBlocks;  // never destroyed: tensors may outlive every static
  return *instance;
}

void give_back_late(const Context& ctx) {
  auto& late = late_blocks();
  const std::lock_guard lock(late.mutex);
  std::erase_if(late.blocks, [&](const Late& b) {
    if (b.ctx.device != ctx.device || (b.ctx.stream != ctx.stream && capturing(b.ctx))) return false;
    deallocate(b.data, b.bytes, b.ctx);
    return true;
  });
  late.any = !late.blocks.empty();
}

}  // namespace

Block acquire(std::size_t bytes, const Context& ctx) {
  const bool of_graph = capturing(ctx);
  if (!of_graph && late_blocks().any.load(std::memory_order_relaxed)) give_back_late(ctx);
  return {allocate(bytes, ctx), of_graph};
}

void release(void* data, std::size_t bytes, const Context& ctx, bool of_graph,
             const std::vector<Context>& uses) noexcept {
  if (data == nullptr) return;
  try {
    const bool captured_now = capturing(ctx);
    if (of_graph && !captured_now) {  // the graph owns it
      forget(bytes, ctx.device);
      return;
    }
    if (!of_graph && captured_now) {
      auto& late = late_blocks();
      const std::lock_guard lock(late.mutex);
      late.blocks.push_back({data, bytes, ctx});
      late.any = true;
      return;
    }
    for (const auto& use : uses) order(use, ctx);
  } catch (const std::exception& e) {
    // The driver is going away with the process: so is the memory.
    cudaGetLastError();
    return;
  }
  deallocate(data, bytes, ctx);
}

}  // namespace apex::cuda
