// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../multi_tensor_impl.hpp"
#include "multi_tensor.cuh"

// A block sums the squares of one chunk; one block then adds the chunks of each tensor, and after the last table the
// tensors. All of it in an order that sizes alone decide.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

constexpr std::int64_t kNormChunk = kChunk * 4;
constexpr int kFinishThreads = 1024;

/// The sum of squares of each chunk, in f64 from f32 sums of 64 elements.
template <class N>
__global__ void __launch_bounds__(kThreads, 4)
    chunk_squares(const __grid_constant__ Table<1> table, double* sums, std::int32_t* flag) {
  using A = compute_t<N>;
  const int tensor = table.find(blockIdx.x);
  std::int64_t at = std::int64_t{blockIdx.x - table.start[tensor]} * kNormChunk;
  const std::int64_t size = table.size[tensor], end = at + kNormChunk < size ? at + kNormChunk : size;
  const void* x = table.data[0][tensor];
  A sum[kWidth] = {};
  if (table.is_vector(tensor)) {
    const std::int64_t whole = at + (end - at) / kWidth * kWidth;
#pragma unroll 4
    for (std::int64_t i = at + std::int64_t{threadIdx.x} * kWidth; i < whole; i += kThreads * kWidth) {
      const auto pack = fetch<kWidth, N>(x, i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const A v = load(pack.v[e]);
        sum[e] = fma(v, v, sum[e]);
      }
    }
    at = whole;
  }
#pragma unroll 4
  for (std::int64_t i = at + threadIdx.x; i < end; i += kThreads) {
    const A v = load(static_cast<const N*>(x)[i]);
    sum[0] = fma(v, v, sum[0]);
  }
  const double own = (static_cast<double>(sum[0]) + static_cast<double>(sum[1])) +
                     (static_cast<double>(sum[2]) + static_cast<double>(sum[3]));
  double total = block_sum<kThreads>(own);
  if (threadIdx.x != 0) return;
  const A narrow = static_cast<A>(total);
  if (!isfinite(narrow)) {
    total = static_cast<double>(narrow);
    if (flag != nullptr) *flag = 1;
  }
  sums[blockIdx.x] = total;
}

template <class A>
struct Norms {
  const double* chunks;
  double* tensors;  // [total] sums of squares
  A *norm, *per_tensor;
  std::int64_t total;
  int first;
  bool last;  // table
};

template <class A>
__global__ void __launch_bounds__(kFinishThreads)
    finish_norms(const __grid_constant__ Table<1> table, const Norms<A> n) {
  constexpr int kWarps = kFinishThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < table.count; i += kWarps) {
    double sum = 0;
    for (unsigned k = table.start[i] + static_cast<unsigned>(lane); k < table.start[i + 1]; k += 32) sum += n.chunks[k];
    sum = warp_sum(sum);
    if (lane != 0) continue;
    n.tensors[n.first + i] = sum;
    if (n.per_tensor != nullptr) n.per_tensor[n.first + i] = static_cast<A>(sqrt(sum));
  }
  if (!n.last) return;
  __syncthreads();
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n.total; i += kFinishThreads) sum += n.tensors[i];
  sum = block_sum<kFinishThreads>(sum);
  if (threadIdx.x == 0) *n.norm = static_cast<A>(sqrt(sum));
}

template <class A>
__global__ void set_zero(A* value) {
  *value = A(0);
}

}  // namespace

void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t) {
  constexpr const char* name = "multi_tensor_l2norm";
  const auto stream = stream_of(ctx);
  if (x.empty()) {
    visit_wide_floating(norm.dtype, name, [&]<class A>() { set_zero<<<1, 1, 0, stream>>>(norm.as<A>()); });
    return check_launch(name);
  }
  std::int64_t chunks = 0;
  for (const auto& t : x) chunks += ceil_div(t.numel(), kNormChunk);
  const auto tensors = static_cast<std::int64_t>(x.size());
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(chunks + tensors) * sizeof(double));
  visit_native(x[0].dtype, name, [&]<class N>() {
    using A = compute_t<N>;
    double* sums = memory.as<double>();
    auto filler = make_filler<1>(kNormChunk, [&](const Table<1>& table, int first) {
      const unsigned blocks = table.start[table.count];
      if (blocks > 0) chunk_squares<N><<<blocks, kThreads, 0, stream>>>(table, sums, flag_of(flag));
      const Norms<A> n{.chunks = sums,
                       .tensors = memory.as<double>() + chunks,
                       .norm = norm.as<A>(),
                       .per_tensor = per_tensor.defined() ? per_tensor.as<A>() : nullptr,
                       .total = tensors,
                       .first = first,
                       .last = first + table.count == tensors};
      finish_norms<<<1, kFinishThreads, 0, stream>>>(table, n);
      check_launch(name);
      sums += blocks;
    });
    for (const auto& t : x) filler.add({t.data}, {sizeof(N)}, t.numel(), 0);
    filler.flush();
  });
}

}  // namespace apex::kernels::cuda
