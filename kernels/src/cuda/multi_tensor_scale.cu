// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../multi_tensor_impl.hpp"
#include "multi_tensor.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

/// out = in * scale.
template <class From, class To>
struct Scale {
  using C = std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double, float>;

  C factor;
  std::int32_t* flag;
  const void* in = nullptr;
  void* out = nullptr;
  bool bad = false;

  Scale(double scale, std::int32_t* raised) : factor(static_cast<C>(scale)), flag(raised) {}

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
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) {
    Pack<To, E> y;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C x = static_cast<C>(load(item.x.v[e]));
      y.v[e] = store<To>(x * factor);
      bad = bad || is_bad(x) || is_bad(load(y.v[e]));
    }
    put<E, To>(out, at, y);
  }
  __device__ __forceinline__ void finish() const {
    if (bad && flag != nullptr) *flag = 1;  // whoever comes first or last: all write the same
  }
};

}  // namespace

void multi_tensor_scale(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t) {
  if (in.empty()) return;
  constexpr const char* name = "multi_tensor_scale";
  visit_native(in[0].dtype, name, [&]<class From>() {
    visit_native(out[0].dtype, name, [&]<class To>() {
      const Scale<From, To> op(scale, flag_of(flag));
      auto filler = make_filler<2>(kChunk, [&](const Table<2>& table, int) { launch_each(ctx, table, op, name); });
      for (std::size_t i = 0; i < in.size(); ++i)
        filler.add({in[i].data, out[i].data}, {sizeof(From), sizeof(To)}, in[i].numel(), 0);
      filler.flush();
    });
  });
}

}  // namespace apex::kernels::cuda
