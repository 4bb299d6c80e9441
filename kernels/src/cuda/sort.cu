// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "sort.cuh"

#include "../sort_impl.hpp"
#include "argmax.cuh"
#include "order.hpp"

namespace apex::kernels::cuda {
namespace {

/// Keys of all lines side by side.
template <class N>
__global__ void __launch_bounds__(kMapThreads)
    keys_kernel(sort_key_t<N>* keys, const N* x, Index<1> lines, std::int64_t length, std::int64_t stride, bool turn) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (at >= lines.numel * length) return;
  const std::int64_t line = at / length, place = at - line * length;
  const auto key = key_of(x[lines.at(line).v[0] + place * stride]);
  keys[at] = turn ? ~key : key;
}

struct Results {
  Index<3> lines;  // operands x, values, indices
  std::int64_t length, k;
  std::int64_t stride, values_stride, indices_stride;
  const std::uint32_t* places;
};

template <class U>
__global__ void __launch_bounds__(kMapThreads)
    results_kernel(U* values, std::int64_t* indices, const U* x, const Results s) {
  const std::int64_t task = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (task >= s.lines.numel * s.k) return;
  const std::int64_t line = task / s.k, j = task - line * s.k;
  const auto at = s.lines.at(line);
  const std::int64_t place = s.places[line * s.length + j];
  if (values != nullptr) values[at.v[1] + j * s.values_stride] = x[at.v[0] + place * s.stride];
  if (indices != nullptr) indices[at.v[2] + j * s.indices_stride] = place;
}

}  // namespace

void order_lines(const Context& ctx, const char* op, const View& values, const View& indices, const ConstView& x,
                 std::int64_t k, int dim, bool descending) {
  if (k == 0 || x.numel() == 0) return;
  const std::int64_t length = x.sizes[dim];
  check_sortable(op, length);
  const Dims none = Dims::filled(x.rank(), 0);
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const Dims& to_values = values.defined() ? values.strides : none;
  const Dims& to_indices = indices.defined() ? indices.strides : none;
  // In row-major order of the lines whatever lies where, so that both indices count them alike.
  const auto lines = make_index<1>(sizes, {x.strides}, Order::logical);
  Results s{make_index<3>(sizes, {x.strides, to_values, to_indices}, Order::logical),
            length,
            k,
            x.strides[dim],
            to_values[dim],
            to_indices[dim],
            nullptr};
  const auto blocks = [](std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kMapThreads)); };
  visit_comparable(x.dtype, op, [&]<class T>() {
    using N = native_t<T>;
    using K = sort_key_t<N>;
    const Workspace memory = ctx.workspace(sort_bytes(lines.numel, length, sizeof(K)));
    keys_kernel<<<blocks(x.numel()), kMapThreads, 0, stream_of(ctx)>>>(memory.as<K>(), static_cast<const N*>(x.data),
                                                                       lines, length, x.strides[dim], descending);
    s.places = sort_lines<K>(ctx, memory.data(), lines.numel, length).places;
    visit_width(x.dtype, [&]<class U>() {
      results_kernel<<<blocks(lines.numel * k), kMapThreads, 0, stream_of(ctx)>>>(
          values.defined() ? static_cast<U*>(values.data) : nullptr,
          indices.defined() ? native<std::int64_t>(indices) : nullptr, static_cast<const U*>(x.data), s);
    });
  });
  check_launch(op);
}

void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending) {
  order_lines(ctx, "sort", values, indices, x, x.sizes[dim], dim, descending);
}

}  // namespace apex::kernels::cuda
