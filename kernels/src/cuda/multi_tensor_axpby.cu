// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../multi_tensor_impl.hpp"
#include "multi_tensor.cuh"

// Three lists of one type have a kernel of their own; for mixtures the types are looked up element by element, so that
// sixty-four combinations need not be compiled.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

template <class C, int E>
__device__ __forceinline__ void fetch_any(C (&values)[E], DType dtype, const void* from, std::int64_t at) {
  const auto take = [&](const auto& pack) {
#pragma unroll
    for (int e = 0; e < E; ++e) values[e] = static_cast<C>(load(pack.v[e]));
  };
  switch (dtype) {
    case DType::f64: return take(multi_tensor::fetch<E, double>(from, at));
    case DType::f32: return take(multi_tensor::fetch<E, float>(from, at));
    case DType::f16: return take(multi_tensor::fetch<E, __half>(from, at));
    default: return take(multi_tensor::fetch<E, __nv_bfloat16>(from, at));
  }
}

/// Stores, and says whether something that was stored is not finite.
template <class N, class C, int E>
__device__ __forceinline__ bool put_checked(const C (&values)[E], void* to, std::int64_t at) {
  Pack<N, E> out;
  bool bad = false;
#pragma unroll
  for (int e = 0; e < E; ++e) {
    out.v[e] = store<N>(values[e]);
    bad = bad || is_bad(load(out.v[e]));
  }
  put<E, N>(to, at, out);
  return bad;
}

/// out = a x + b y. N: the one type of all lists; void: see the types at hand.
template <class N, class C>
struct Axpby {
  C a, b;
  bool check_x, check_y, check_out;
  DType x_type, y_type, out_type;
  std::int32_t* flag;
  const void *x = nullptr, *y = nullptr;
  void* out = nullptr;
  bool bad = false;

  template <int E>
  struct Typed {
    Pack<N, E> x, y;
  };
  template <int E>
  struct Any {
    C x[E], y[E];
  };
  template <int E>
  using Item =
      typename std::conditional_t<std::is_void_v<N>, std::type_identity<Any<E>>, std::type_identity<Typed<E>>>::type;

  __device__ __forceinline__ bool begin(const Table<3>& table, int i) {
    x = table.data[0][i];
    y = table.data[1][i];
    out = table.data[2][i];
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    if constexpr (std::is_void_v<N>) {
      fetch_any<C, E>(item.x, x_type, x, at);
      fetch_any<C, E>(item.y, y_type, y, at);
    } else {
      item.x = multi_tensor::fetch<E, N>(x, at);
      item.y = multi_tensor::fetch<E, N>(y, at);
    }
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) {
    C values[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      C p, q;
      if constexpr (std::is_void_v<N>) {
        p = item.x[e];
        q = item.y[e];
      } else {
        p = load(item.x.v[e]);
        q = load(item.y.v[e]);
      }
      bad = bad || (check_x && is_bad(p)) || (check_y && is_bad(q));
      values[e] = a * p + b * q;
    }
    const bool stored_bad = put_values<E>(values, at);
    bad = bad || (check_out && stored_bad);
  }
  template <int E>
  __device__ __forceinline__ bool put_values(const C (&values)[E], std::int64_t at) const {
    if constexpr (!std::is_void_v<N>) {
      return put_checked<N>(values, out, at);
    } else {
      switch (out_type) {
        case DType::f64: return put_checked<double>(values, out, at);
        case DType::f32: return put_checked<float>(values, out, at);
        case DType::f16: return put_checked<__half>(values, out, at);
        default: return put_checked<__nv_bfloat16>(values, out, at);
      }
    }
  }
  __device__ __forceinline__ void finish() const {
    if (bad && flag != nullptr) *flag = 1;
  }
};

}  // namespace

void multi_tensor_axpby(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check, std::int64_t) {
  if (x.empty()) return;
  constexpr const char* name = "multi_tensor_axpby";
  const DType x_type = x[0].dtype, y_type = y[0].dtype, out_type = out[0].dtype;
  const auto run = [&]<class N, class C>() {
    const Axpby<N, C> op{.a = static_cast<C>(a),
                         .b = static_cast<C>(b),
                         .check_x = check != CheckArgs::y,
                         .check_y = check != CheckArgs::x,
                         .check_out = check == CheckArgs::both,
                         .x_type = x_type,
                         .y_type = y_type,
                         .out_type = out_type,
                         .flag = flag_of(flag)};
    auto filler = make_filler<3>(kChunk, [&](const Table<3>& table, int) { launch_each(ctx, table, op, name); });
    for (std::size_t i = 0; i < x.size(); ++i)
      filler.add({x[i].data, y[i].data, out[i].data}, {size_of(x_type), size_of(y_type), size_of(out_type)},
                 x[i].numel(), 0);
    filler.flush();
  };
  if (x_type == y_type && x_type == out_type)
    return visit_native(x_type, name, [&]<class N>() { run.template operator()<N, compute_t<N>>(); });
  const bool wide = x_type == DType::f64 || y_type == DType::f64 || out_type == DType::f64;
  wide ? run.template operator()<void, double>() : run.template operator()<void, float>();
}

}  // namespace apex::kernels::cuda
