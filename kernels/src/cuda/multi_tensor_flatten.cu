// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "../multi_tensor_impl.hpp"
#include "multi_tensor.cuh"

// Both directions are the same: elements of one list become elements of another. Tensors of different types go in a
// launch for each type.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

/// out = in * scale, the very bits where neither type nor scale says otherwise.
template <class From, class To>
struct Move {
  using C = std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double, float>;

  C factor;
  const void* in = nullptr;
  void* out = nullptr;

  template <int E>
  struct Item {
    Pack<From, E> x;
  };

  __device__ __forceinline__ bool begin(const Table<2>& table, int i) {
    in = table.data[0][i];
    out = table.data[1][i];
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.x = multi_tensor::fetch<E, From>(in, at);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    if constexpr (std::is_same_v<From, To>)
      if (factor == C(1)) return put<E, To>(out, at, item.x);
    Pack<To, E> y;
#pragma unroll
    for (int e = 0; e < E; ++e) y.v[e] = store<To>(static_cast<C>(load(item.x.v[e])) * factor);
    put<E, To>(out, at, y);
  }
  __device__ __forceinline__ void finish() const {}
};

/// Tensors of dtype T with their places in the flat buffer.
template <class T, class N, bool kPack, class V>
void move_type(const Context& ctx, std::span<const V> tensors, const ConstView& flat, double scale, const char* name) {
  using From = std::conditional_t<kPack, native_t<T>, N>;
  using To = std::conditional_t<kPack, N, native_t<T>>;
  using Op = Move<From, To>;
  const Op op{.factor = static_cast<typename Op::C>(scale)};
  auto filler = make_filler<2>(kChunk, [&](const Table<2>& table, int) { launch_each(ctx, table, op, name); });
  const N* at = static_cast<const N*>(flat.data);
  for (const auto& t : tensors) {
    if (t.dtype == dtype_of<T>) {
      const void* from = kPack ? static_cast<const void*>(t.data) : at;
      const void* to = kPack ? at : static_cast<const void*>(t.data);
      filler.add({from, to}, {sizeof(From), sizeof(To)}, t.numel(), 0);
    }
    at += t.numel();
  }
  filler.flush();
}

template <bool kPack, class V>
void move_all(const Context& ctx, std::span<const V> tensors, const ConstView& flat, double scale, const char* name) {
  visit_native(flat.dtype, name, [&]<class N>() {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      if (std::any_of(tensors.begin(), tensors.end(), [=](const auto& t) { return t.dtype == dtype; }))
        visit_floating(dtype, name, [&]<class T>() { move_type<T, N, kPack>(ctx, tensors, flat, scale, name); });
  });
}

}  // namespace

void flatten(const Context& ctx, View flat, std::span<const ConstView> tensors, double scale) {
  move_all<true>(ctx, tensors, ConstView(flat), scale, "flatten");
}

void unflatten(const Context& ctx, std::span<const View> tensors, ConstView flat, double scale) {
  move_all<false>(ctx, tensors, flat, scale, "unflatten");
}

}  // namespace apex::kernels::cuda
