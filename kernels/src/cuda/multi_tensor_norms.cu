// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_measure.cuh"

// The norms beside multi_tensor_l2norm. The flag is read by the chunks (an op that skips) and written by the last
// kernel only, so that no chunk sees what another one found.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

constexpr int kFinishThreads = 1024;

template <class A>
struct Finish {
  const double* chunks;
  double* tensors;
  A *norm, *per_tensor;
  std::int32_t* flag;
  std::int64_t total;
  bool largest, blends, skips;
  A alpha, beta;

  __device__ __forceinline__ bool is_skipped() const { return skips && flag != nullptr && *flag != 0; }
};

/// What the chunks of each tensor of one table come to, a block each.
template <class A>
__global__ void __launch_bounds__(kReduceThreads)
    finish_tensors(const __grid_constant__ Table<2> table, const Finish<A> f, int first) {
  const int i = static_cast<int>(blockIdx.x), at = first + i;
  const bool skipped = f.is_skipped();
  const double measure = skipped ? 0.0 : reduce_chunks<1>(table, i, f.chunks, f.largest).value[0];
  if (threadIdx.x != 0) return;
  f.tensors[at] = measure;
  if (f.per_tensor == nullptr) return;
  const A norm = static_cast<A>(f.largest ? measure : sqrt(measure)), kept = f.blends ? f.per_tensor[at] : A(0);
  f.per_tensor[at] = !f.blends   ? norm
                     : f.largest ? f.alpha * kept + f.beta * norm
                                 : sqrt(f.alpha * kept * kept + f.beta * norm * norm);
}

template <class A>
__global__ void __launch_bounds__(kFinishThreads) finish_all(const Finish<A> f) {
  double own = 0;
  bool bad = false;
  for (std::int64_t i = threadIdx.x; i < f.total; i += kFinishThreads) {
    const double measure = f.tensors[i];
    own = f.largest ? larger(own, measure) : own + measure;
    bad = bad || !isfinite(measure);
  }
  const double all = block_reduce<kFinishThreads>(own, f.largest);
  if (threadIdx.x == 0 && f.norm != nullptr) *f.norm = static_cast<A>(f.largest ? all : sqrt(all));
  if (bad && f.flag != nullptr) *f.flag = 1;
}

/// x *= min(1, max_norm / (norm + 1e-6)).
template <class C>
struct Clip {
  const float* norm;
  const double* wide_norm;
  double max_norm;
  DType type;
  void* x = nullptr;
  C factor{};

  template <int E>
  struct Item {
    Held<std::conditional_t<std::is_same_v<C, double>, double, void>, E> x;
  };

  template <class A>
  __device__ __forceinline__ C coefficient(A value) const {
    const A c = static_cast<A>(max_norm) / (value + static_cast<A>(1e-6));
    return static_cast<C>(c >= A(1) ? A(1) : c);
  }
  __device__ __forceinline__ bool begin(const Table<1>& table, int i) {
    x = table.data[0][i];
    factor = norm != nullptr ? coefficient(*norm) : coefficient(*wide_norm);
    return factor != C(1);
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.x.fetch(x, at, type);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C values[E];
#pragma unroll
    for (int e = 0; e < E; ++e) values[e] = item.x.template get<C>(e, type) * factor;
    put_any<std::conditional_t<std::is_same_v<C, double>, double, void>>(values, x, at, type);
  }
  __device__ __forceinline__ void finish() const {}
};

/// Floating types and e5m2 bytes; From is one of these, the other is looked up.
template <class From>
struct Cast {
  static constexpr bool kBytes = std::is_same_v<From, unsigned char>;
  using C = std::conditional_t<std::is_same_v<From, double>, double, float>;

  const std::int32_t* flag;
  DType to_type;
  bool same;  // type on both sides
  const void* in = nullptr;
  void* out = nullptr;

  template <int E>
  struct Item {
    Pack<From, E> x;
  };

  __device__ __forceinline__ bool begin(const Table<2>& table, int i) {
    in = table.data[0][i];
    out = table.data[1][i];
    return flag == nullptr || *flag == 0;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.x = multi_tensor::fetch<E, From>(in, at);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    if (same) return put<E, From>(out, at, item.x);
    C values[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      if constexpr (kBytes)
        values[e] = __half2float(__ushort_as_half(static_cast<unsigned short>(item.x.v[e] << 8)));
      else
        values[e] = load(item.x.v[e]);
    }
    if (to_type != DType::u8) return put_any<void>(values, out, at, to_type);
    Pack<unsigned char, E> bytes;
#pragma unroll
    for (int e = 0; e < E; ++e) bytes.v[e] = optimizer::e5m2_of(__half_as_ushort(store<__half>(values[e])));
    put<E, unsigned char>(out, at, bytes);
  }
  __device__ __forceinline__ void finish() const {}
};

template <class From>
void run_cast(const Context& ctx, const View& flag, std::span<const View> out, std::span<const ConstView> in) {
  const Cast<From> op{.flag = flag_of(flag), .to_type = out[0].dtype, .same = out[0].dtype == in[0].dtype};
  auto filler = make_filler<2>(
      kChunk, [&](const Table<2>& table, int) { launch_each(ctx, table, op, "multi_tensor_maybe_cast"); });
  for (std::size_t i = 0; i < in.size(); ++i)
    filler.add({in[i].data, out[i].data}, {sizeof(From), size_of(out[i].dtype)}, in[i].numel(), 0);
  filler.flush();
}

__global__ void update_scale(float* scale, std::int32_t* growth, std::int32_t* hysteresis, const float* found_inf,
                             const ScaleRule rule) {
  rule.update(*scale, *growth, *hysteresis, *found_inf);
}

}  // namespace

void multi_tensor_norms(const Context& ctx, const Norms& n) {
  constexpr const char* name = "multi_tensor_norms";
  const DType dtype = n.norm.defined() ? n.norm.dtype : n.per_tensor.dtype;
  std::int64_t chunks = 0;
  for (const auto& x : n.in) chunks += ceil_div(x.numel(), kChunk);
  const auto tensors = static_cast<std::int64_t>(n.in.size());
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(chunks + tensors) * sizeof(double));
  OnDevice device;
  if (n.skips) device.flag = flag_of(n.flag);
  if (n.inv_scale.defined()) device.inv_scale = n.inv_scale.as<float>();
  with_compute_type(dtype == DType::f64, [&]<class C>() {
    double* sums = memory.as<double>();
    Finish<C> f{.chunks = sums,
                .tensors = memory.as<double>() + chunks,
                .norm = n.norm.defined() ? n.norm.as<C>() : nullptr,
                .per_tensor = n.per_tensor.defined() ? n.per_tensor.as<C>() : nullptr,
                .flag = flag_of(n.flag),
                .total = tensors,
                .largest = n.type == NormType::inf,
                .blends = n.blends,
                .skips = n.skips,
                .alpha = static_cast<C>(n.alpha),
                .beta = static_cast<C>(n.beta)};
    auto filler = make_filler<2>(kChunk, [&](const Table<2>& table, int first) {
      using N = std::conditional_t<std::is_same_v<C, double>, double, void>;
      const Measure<C, N> op{.device = device,
                             .scale = C(1),
                             .out_scale = static_cast<C>(n.scale),
                             .type = n.in[0].dtype,
                             .out_type = dtype_of_list(n.out),
                             .largest = f.largest,
                             .writes = !n.out.empty(),
                             .chunks = sums,
                             .flag = f.flag};
      launch_each(ctx, table, op, name);
      f.chunks = sums;
      finish_tensors<C><<<static_cast<unsigned>(table.count), kReduceThreads, 0, stream_of(ctx)>>>(table, f, first);
      check_launch(name);
      sums += table.start[table.count];
    });
    for (std::size_t i = 0; i < n.in.size(); ++i)
      filler.add({n.in[i].data, data_at(n.out, i)}, {size_of(n.in[i].dtype), size_of(dtype_of_list(n.out))},
                 n.in[i].numel(), 0);
    filler.flush();
    finish_all<C><<<1, kFinishThreads, 0, stream_of(ctx)>>>(f);
    check_launch(name);
  });
}

void multi_tensor_clip(const Context& ctx, std::span<const View> x, ConstView norm, double max_norm) {
  with_compute_type(x[0].dtype == DType::f64, [&]<class C>() {
    const Clip<C> op{.norm = norm.dtype == DType::f32 ? norm.as<float>() : nullptr,
                     .wide_norm = norm.dtype == DType::f64 ? norm.as<double>() : nullptr,
                     .max_norm = max_norm,
                     .type = x[0].dtype};
    auto filler =
        make_filler<1>(kChunk, [&](const Table<1>& table, int) { launch_each(ctx, table, op, "multi_tensor_clip"); });
    for (const auto& t : x) filler.add({t.data}, {size_of(t.dtype)}, t.numel(), 0);
    filler.flush();
  });
}

void multi_tensor_maybe_cast(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in) {
  if (in[0].dtype == DType::u8) return run_cast<unsigned char>(ctx, flag, out, in);
  visit_native(in[0].dtype, "multi_tensor_maybe_cast", [&]<class N>() { run_cast<N>(ctx, flag, out, in); });
}

void update_scale_hysteresis(const Context& ctx, View scale, View growth, View hysteresis, ConstView found_inf,
                             const ScaleRule& rule) {
  update_scale<<<1, 1, 0, stream_of(ctx)>>>(scale.as<float>(), growth.as<std::int32_t>(), hysteresis.as<std::int32_t>(),
                                            found_inf.as<float>(), rule);
  check_launch("update_scale_hysteresis");
}

}  // namespace apex::kernels::cuda
