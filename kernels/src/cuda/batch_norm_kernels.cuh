// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "batch_norm_walk.cuh"

// The four passes of batch normalisation. All of them walk the tensor by the same rule; a thread keeps to its channels,
// so their constants stay in registers. The second pass of forward and of backward goes through the tensor from its
// end: what the first one read last is still in the L2 cache.

namespace apex::kernels::cuda::batch_norm {

/// y = (x - mean) * scale + bias. One expression for forward and for masks made again.
template <class A>
__device__ __forceinline__ A normalised(A x, A mean, A scale, A bias) {
  return fma(x - mean, scale, bias);
}

template <class A>
struct Channel {
  A mean, inv_std, scale, bias;
};

/// Reads the [C] views once a thread.
template <class N, class A = compute_t<N>>
__device__ __forceinline__ A value_at(const Vector& v, std::int64_t i, A otherwise) {
  if (v.data == nullptr) return otherwise;
  if constexpr (!std::is_same_v<N, A>)
    if (!v.wide) return load(static_cast<const N*>(v.data)[i]);
  return static_cast<const A*>(v.data)[i];
}

template <class N, class A = compute_t<N>>
__device__ __forceinline__ Channel<A> channel_at(const Affine& a, std::int64_t i) {
  Channel<A> out;
  out.mean = value_at<N>(a.mean, i, A(0));
  out.inv_std = value_at<N>(a.spread, i, A(1));
  if (a.spread_is_variance) out.inv_std = A(1) / sqrt(out.inv_std + static_cast<A>(a.eps));
  out.scale = value_at<N>(a.weight, i, A(1)) * out.inv_std;
  out.bias = value_at<N>(a.bias, i, A(0));
  return out;
}

/// Per block and channel the mean and the sum of squares about it. A thread sums differences from its first value, so
/// that nothing cancels; threads meet in f64.
template <class N, int V, bool kRows>
__global__ void __launch_bounds__(kThreads, 2) statistics(double2* partial, const N* x, const Walk w) {
  using A = compute_t<N>;
  constexpr int L = kRows ? V : 1, kUnroll = 8;
  __shared__ double pivots[32 * L];
  const Place<V, kRows> p(w);
  A shift[L] = {}, s1[L] = {}, s2[L] = {};
  if (p.active) {
    const auto first = fetch<Hint::keep, V>(x + Cursor<V, kRows, false>(w, p).take());
#pragma unroll
    for (int l = 0; l < L; ++l) shift[l] = load(first.v[l]);
    Pack<N, V> in[kUnroll];
    walk<kUnroll, V, kRows, false, true>(
        w, p, [&](int u, std::int64_t at) { in[u] = fetch<Hint::keep, V>(x + at); },
        [&](int u, std::int64_t) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const int l = kRows ? v : 0;
            const A d = load(in[u].v[v]) - shift[l];
            s1[l] += d;
            s2[l] = fma(d, d, s2[l]);
          }
        });
  }
  if (p.row == 0) {
#pragma unroll
    for (int l = 0; l < L; ++l) pivots[p.column * L + l] = static_cast<double>(shift[l]);
  }
  __syncthreads();
  const double n = static_cast<double>(p.values(w));
  double a[L] = {}, b[L] = {};
  if (n > 0) {
#pragma unroll
    for (int l = 0; l < L; ++l) {  // about the pivot, which all threads of the channel share
      const double sum = static_cast<double>(s1[l]), off = sum / n;
      const double d = static_cast<double>(shift[l]) - pivots[p.column * L + l] + off;
      a[l] = n * d;
      b[l] = static_cast<double>(s2[l]) - sum * off + n * d * d;
    }
  }
  const double count = static_cast<double>(w.values_of_group(p.group));
  sum_block<V, kRows>(w, p, a, b, [&](int slot, std::int64_t channel, double2 sums) {
    const double off = sums.x / count;
    partial[p.group * w.c + channel] = make_double2(pivots[slot] + off, sums.y - sums.x * off);
  });
}

template <class N, int V, bool kRows, bool kResidual>
__global__ void __launch_bounds__(kThreads, 2)
    apply(N* y, const N* x, const N* residual, const Affine affine, const bool relu, const Walk w) {
  using A = compute_t<N>;
  constexpr int L = kRows ? V : 1, kUnroll = kResidual ? 4 : 8;
  const Place<V, kRows> p(w);
  if (!p.active) return;
  Channel<A> k[L];
#pragma unroll
  for (int l = 0; l < L; ++l) k[l] = channel_at<N>(affine, p.channel + l);
  Pack<N, V> in[kUnroll], add[kResidual ? kUnroll : 1];
  walk<kUnroll, V, kRows, true, !kResidual>(
      w, p,
      [&](int u, std::int64_t at) {
        in[u] = fetch<Hint::last_use, V>(x + at);
        if constexpr (kResidual) add[u] = fetch<Hint::last_use, V>(residual + at);
      },
      [&](int u, std::int64_t at) {
        Pack<N, V> out;
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Channel<A>& c = k[kRows ? v : 0];
          A value = normalised(load(in[u].v[v]), c.mean, c.scale, c.bias);
          if constexpr (kResidual) value += load(add[u].v[v]);
          if (relu) value = value <= A(0) ? A(0) : value;  // NaN stays
          out.v[v] = store<N>(value);
        }
        put_pack(y + at, out, w.past_cache);
      });
}

/// dy where the output was positive.
template <Mask kMask, class A>
__device__ __forceinline__ A masked(A dy, A y, A x, const Channel<A>& c) {
  if constexpr (kMask == Mask::none) return dy;
  const A out = kMask == Mask::from_output ? y : normalised(x, c.mean, c.scale, c.bias);
  return out <= A(0) ? A(0) : dy;
}

/// Per block and channel [sum g, sum g (x - mean)]; dresidual = g and, with constant statistics, dx = g * scale.
template <class N, int V, bool kRows, Mask kMask>
__global__ void __launch_bounds__(kThreads, 2)
    backward_sums(double2* partial, N* dresidual, N* constant_dx, const N* dy, const N* more_dy, const N* y, const N* x,
                  const Affine affine, const Walk w) {
  using A = compute_t<N>;
  constexpr bool kTwo = kMask == Mask::two_terms, kOutput = kTwo || kMask == Mask::from_output;
  constexpr Mask kFrom = kTwo ? Mask::from_output : kMask;
  constexpr int L = kRows ? V : 1, kUnroll = kTwo ? 3 : 4;
  const Place<V, kRows> p(w);
  A s1[L] = {}, s2[L] = {};
  if (p.active) {
    Channel<A> k[L];
#pragma unroll
    for (int l = 0; l < L; ++l) k[l] = channel_at<N>(affine, p.channel + l);
    Pack<N, V> gradient[kUnroll], in[kUnroll], out[kOutput ? kUnroll : 1], more[kTwo ? kUnroll : 1];
    walk<kUnroll, V, kRows, false>(
        w, p,
        [&](int u, std::int64_t at) {
          gradient[u] = fetch<Hint::keep, V>(dy + at);
          in[u] = fetch<Hint::keep, V>(x + at);
          if constexpr (kOutput) out[u] = fetch<Hint::last_use, V>(y + at);
          if constexpr (kTwo) more[u] = fetch<Hint::last_use, V>(more_dy + at);
        },
        [&](int u, std::int64_t at) {
          Pack<N, V> g;
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const int l = kRows ? v : 0;
            const A value = load(in[u].v[v]);
            A whole = load(gradient[u].v[v]);
            if constexpr (kTwo) whole = load(store<N>(whole + load(more[u].v[v])));
            const A masked_dy = masked<kFrom>(whole, kOutput ? load(out[u].v[v]) : A(0), value, k[l]);
            s1[l] += masked_dy;
            s2[l] = fma(masked_dy, value - k[l].mean, s2[l]);
            g.v[v] = store<N>(masked_dy);  // exact: it is dy or 0
          }
          if (dresidual != nullptr) put_pack(dresidual + at, g, false);
          if (constant_dx != nullptr) {
            Pack<N, V> d;
#pragma unroll
            for (int v = 0; v < V; ++v) d.v[v] = store<N>(load(g.v[v]) * k[kRows ? v : 0].scale);
            put_pack(constant_dx + at, d, w.past_cache);
          }
        });
  }
  double a[L], b[L];
#pragma unroll
  for (int l = 0; l < L; ++l) {
    a[l] = static_cast<double>(s1[l]);
    b[l] = static_cast<double>(s2[l]);
  }
  sum_block<V, kRows>(w, p, a, b,
                      [&](int, std::int64_t channel, double2 sums) { partial[p.group * w.c + channel] = sums; });
}

/// dx = (g - sum_dy / n - (x - mean) * inv_std^2 * sum_dy_xmu / n) * scale
template <class N, int V, bool kRows, Mask kMask>
__global__ void __launch_bounds__(kThreads, 2)
    backward_apply(N* dx, const N* dy, const N* y, const N* x, const Affine affine, const compute_t<N>* sum_dy,
                   const compute_t<N>* sum_dy_xmu, const double one_over_n, const Walk w) {
  using A = compute_t<N>;
  constexpr int L = kRows ? V : 1, kUnroll = kMask == Mask::from_output ? 2 : 4;
  const Place<V, kRows> p(w);
  if (!p.active) return;
  Channel<A> k[L];
  A offset[L], slope[L];
#pragma unroll
  for (int l = 0; l < L; ++l) {
    k[l] = channel_at<N>(affine, p.channel + l);
    const double inv_std = static_cast<double>(k[l].inv_std);
    offset[l] = static_cast<A>(static_cast<double>(sum_dy[p.channel + l]) * one_over_n);
    slope[l] = static_cast<A>(inv_std * inv_std * static_cast<double>(sum_dy_xmu[p.channel + l]) * one_over_n);
  }
  Pack<N, V> gradient[kUnroll], in[kUnroll], out[kMask == Mask::from_output ? kUnroll : 1];
  walk<kUnroll, V, kRows, true>(
      w, p,
      [&](int u, std::int64_t at) {
        gradient[u] = fetch<Hint::last_use, V>(dy + at);
        in[u] = fetch<Hint::last_use, V>(x + at);
        if constexpr (kMask == Mask::from_output) out[u] = fetch<Hint::last_use, V>(y + at);
      },
      [&](int u, std::int64_t at) {
        Pack<N, V> d;
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int l = kRows ? v : 0;
          const A value = load(in[u].v[v]);
          const A g =
              masked<kMask>(load(gradient[u].v[v]), kMask == Mask::from_output ? load(out[u].v[v]) : A(0), value, k[l]);
          d.v[v] = store<N>(fma(-(value - k[l].mean), slope[l], g - offset[l]) * k[l].scale);
        }
        put_pack(dx + at, d, w.past_cache);
      });
}

/// Calls f.operator()<V, kRows>() for the walk's variant.
template <class N, class F>
void with_walk(const Walk& w, F&& f) {
  constexpr int kWide = kVector<N>;
  if (w.rows)
    w.vector == kWide ? f.template operator()<kWide, true>() : f.template operator()<1, true>();
  else
    w.vector == kWide ? f.template operator()<kWide, false>() : f.template operator()<1, false>();
}

template <class F>
void with_mask(Mask mask, F&& f) {
  switch (mask) {
    case Mask::none: return f.template operator()<Mask::none>();
    case Mask::from_output: return f.template operator()<Mask::from_output>();
    case Mask::from_input: return f.template operator()<Mask::from_input>();
    case Mask::two_terms: return;  // only backward_sums takes them
  }
}

template <class T>
void Passes<T>::statistics(cudaStream_t stream, const Walk& w, double2* partial, const void* x) {
  using N = native_t<T>;
  with_walk<N>(w, [&]<int V, bool kRows>() {
    batch_norm::statistics<N, V, kRows><<<w.blocks(), kThreads, 0, stream>>>(partial, static_cast<const N*>(x), w);
  });
  check_launch("batch_norm");
}

template <class T>
void Passes<T>::apply(cudaStream_t stream, const Walk& w, void* y, const void* x, const void* residual,
                      const Affine& affine, bool relu) {
  using N = native_t<T>;
  with_walk<N>(w, [&]<int V, bool kRows>() {
    const auto kernel =
        residual != nullptr ? batch_norm::apply<N, V, kRows, true> : batch_norm::apply<N, V, kRows, false>;
    kernel<<<w.blocks(), kThreads, 0, stream>>>(static_cast<N*>(y), static_cast<const N*>(x),
                                                static_cast<const N*>(residual), affine, relu, w);
  });
  check_launch("batch_norm");
}

template <class T>
void Passes<T>::backward_sums(cudaStream_t stream, const Walk& w, double2* partial, void* dresidual, void* constant_dx,
                              const Gradient& g, const Affine& affine) {
  using N = native_t<T>;
  with_walk<N>(w, [&]<int V, bool kRows>() {
    const auto launch = [&]<Mask kMask>() {
      batch_norm::backward_sums<N, V, kRows, kMask><<<w.blocks(), kThreads, 0, stream>>>(
          partial, static_cast<N*>(dresidual), static_cast<N*>(constant_dx), static_cast<const N*>(g.dy),
          static_cast<const N*>(g.more_dy), static_cast<const N*>(g.y), static_cast<const N*>(g.x), affine, w);
    };
    if (g.mask == Mask::two_terms)
      launch.template operator()<Mask::two_terms>();
    else
      with_mask(g.mask, launch);
  });
  check_launch("batch_norm_backward");
}

template <class T>
void Passes<T>::backward_apply(cudaStream_t stream, const Walk& w, void* dx, const Gradient& g, const Affine& affine,
                               const void* sum_dy, const void* sum_dy_xmu, double n) {
  using N = native_t<T>;
  using A = compute_t<N>;
  with_walk<N>(w, [&]<int V, bool kRows>() {
    with_mask(g.mask, [&]<Mask kMask>() {
      batch_norm::backward_apply<N, V, kRows, kMask><<<w.blocks(), kThreads, 0, stream>>>(
          static_cast<N*>(dx), static_cast<const N*>(g.dy), static_cast<const N*>(g.y), static_cast<const N*>(g.x),
          affine, static_cast<const A*>(sum_dy), static_cast<const A*>(sum_dy_xmu), 1.0 / n, w);
    });
  });
  check_launch("batch_norm_backward");
}

}  // namespace apex::kernels::cuda::batch_norm
