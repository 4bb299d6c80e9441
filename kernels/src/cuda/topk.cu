// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "argmax.cuh"

namespace apex::kernels::cuda {
namespace {

struct Places {
  Index<3> lines;  // operands x, values, indices
  std::int64_t length, k;
  std::int64_t stride, values_stride, indices_stride;
};

/// A block takes a line k times: each time the first of those that come after the one chosen last. Meant for a small k:
/// the line stays in the caches.
template <class N>
__global__ void __launch_bounds__(kSelectThreads) topk_kernel(N* values, std::int64_t* indices, const N* x, Places s) {
  using C = compute_t<N>;
  const auto at = s.lines.at(blockIdx.x);
  Candidate<C> last{C(0), -1};
  for (std::int64_t j = 0; j < s.k; ++j) {
    Candidate<C> best{C(0), -1};
    for (std::int64_t i = threadIdx.x; i < s.length; i += kSelectThreads) {
      const Candidate<C> candidate{load(x[at.v[0] + i * s.stride]), i};
      if (last.at < 0 || precedes(last, candidate)) best = first_of(best, candidate);
    }
    last = block_first(best);
    if (threadIdx.x == 0) {
      if (values != nullptr) values[at.v[1] + j * s.values_stride] = x[at.v[0] + last.at * s.stride];
      if (indices != nullptr) indices[at.v[2] + j * s.indices_stride] = last.at;
    }
  }
}

}  // namespace

void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim) {
  if (k == 0 || x.numel() == 0) return;
  const Dims none = Dims::filled(x.rank(), 0);
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const Dims& to_values = values.defined() ? values.strides : none;
  const Dims& to_indices = indices.defined() ? indices.strides : none;
  const Places s{make_index<3>(sizes, {x.strides, to_values, to_indices}),
                 x.sizes[dim],
                 k,
                 x.strides[dim],
                 to_values[dim],
                 to_indices[dim]};
  visit_comparable(x.dtype, "topk", [&]<class T>() {
    using N = native_t<T>;
    topk_kernel<<<static_cast<unsigned>(s.lines.numel), kSelectThreads, 0, stream_of(ctx)>>>(
        values.defined() ? static_cast<N*>(values.data) : nullptr,
        indices.defined() ? native<std::int64_t>(indices) : nullptr, static_cast<const N*>(x.data), s);
  });
  check_launch("topk");
}

}  // namespace apex::kernels::cuda
