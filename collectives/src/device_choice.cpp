// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include "apex/core/error.hpp"
#include "device_link.hpp"

namespace apex::dist::detail {
namespace {

constexpr int kCpuWanted = static_cast<int>(DeviceKind::cpu), kCudaWanted = static_cast<int>(DeviceKind::cuda);

bool same_gpu(const DeviceFacts& a, const DeviceFacts& b) { return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0; }

}  // namespace

std::string device_problem(std::span<const DeviceFacts> ranks, bool& cuda, bool& shared, Kind& kind) {
  const auto find = [&](auto&& which) { return std::find_if(ranks.begin(), ranks.end(), which); };
  const auto name = [&](auto rank) { return concat("rank ", rank - ranks.begin(), " (", rank->host, ')'); };
  cuda = shared = false;
  kind = Kind::data;

  const auto cpu_rank = find([](const auto& r) { return r.wanted == kCpuWanted; });
  const auto cuda_rank = find([](const auto& r) { return r.wanted == kCudaWanted; });
  if (cpu_rank != ranks.end() && cuda_rank != ranks.end())
    return concat(name(cpu_rank), " was asked to run on the CPU, ", name(cuda_rank),
                  " on CUDA; start all ranks with the same device");
  if (cpu_rank != ranks.end()) return {};
  const auto without = find([](const auto& r) { return r.visible == 0; });
  const auto with = find([](const auto& r) { return r.visible > 0; });
  if (cuda_rank == ranks.end() && with == ranks.end()) return {};
  if (without != ranks.end()) {
    if (cuda_rank != ranks.end()) {
      kind = Kind::unsupported;
      return concat(name(without),
                    " was asked to run on CUDA, but sees no device; nvidia-smi lists them, CUDA_VISIBLE_DEVICES "
                    "selects");
    }
    return concat(name(without), " sees no CUDA device, ", name(with),
                  " does; ask for the CPU (--device cpu), or start all ranks where there are devices");
  }
  const auto outside = find([](const auto& r) { return r.index < 0 || r.index >= r.visible; });
  if (outside != ranks.end()) {
    kind = Kind::unsupported;
    return concat(name(outside), " was asked to run on cuda:", outside->index, ", but sees ", outside->visible,
                  " device(s)");
  }
  cuda = true;
  const bool may_share = std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.share != 0; });
  for (auto a = ranks.begin(); a != ranks.end(); ++a)
    for (auto b = ranks.begin(); b != a; ++b) {
      if (!same_gpu(*a, *b)) continue;
      shared = true;
      if (!may_share)
        return concat("ranks ", b - ranks.begin(), " and ", a - ranks.begin(), " on ", a->host,
                      " would use the same GPU, ", a->name, " (cuda:", b->index, " and cuda:", a->index,
                      " there); start one rank for each GPU, or allow ranks to share");
    }
  return {};
}

}  // namespace apex::dist::detail
