// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../elementwise_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

template <class C>
struct ScaleShift {
  C scale, shift;
  __device__ C operator()(C v) const { return v * scale + shift; }
};

template <class C>
struct AddScaled {
  C alpha;
  __device__ C operator()(C x, C y) const { return x + alpha * y; }
};

/// The term is narrowed to the sum's type first, as on the CPU.
template <class C>
struct Accumulate {
  template <class S>
  __device__ C operator()(C sum, S term) const {
    return sum + static_cast<C>(term);
  }
};

struct ReluBackward {
  template <class C>
  __device__ C operator()(C g, C y) const {
    return y > C(0) ? g : C(0);
  }
};

}  // namespace

void relu_backward(const Context& ctx, View dx, ConstView dy, ConstView y) {
  const auto index = index_of(dx, dy, y);
  visit_floating(dx.dtype, "relu_backward", [&]<class T>() {
    map(ctx, "relu_backward", ReluBackward{}, index, native<T>(dx), native<T>(dy), native<T>(y));
  });
}

void scale_shift(const Context& ctx, View out, ConstView x, double scale, double shift) {
  const auto index = index_of(out, x);
  visit_floating(out.dtype, "scale_shift", [&]<class T>() {
    using C = accum_t<T>;
    map(ctx, "scale_shift", ScaleShift<C>{static_cast<C>(scale), static_cast<C>(shift)}, index, native<T>(out),
        native<T>(x));
  });
}

void add_scaled(const Context& ctx, View out, ConstView a, double alpha, ConstView b) {
  const auto index = index_of(out, a, b);
  visit_floating(out.dtype, "add_scaled", [&]<class T>() {
    using C = accum_t<T>;
    map(ctx, "add_scaled", AddScaled<C>{static_cast<C>(alpha)}, index, native<T>(out), native<T>(a), native<T>(b));
  });
}

void accumulate(const Context& ctx, View dst, ConstView src) {
  const auto index = index_of(dst, dst, src);
  visit_floating(dst.dtype, "accumulate", [&]<class T>() {
    visit_floating(src.dtype, "accumulate", [&]<class S>() {
      map(ctx, "accumulate", Accumulate<accum_t<T>>{}, index, native<T>(dst), native<T>(ConstView(dst)),
          native<S>(src));
    });
  });
}

}  // namespace apex::kernels::cuda
