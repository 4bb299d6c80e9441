// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cmath>
#include <vector>

#include "../multi_tensor_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

// Threads share the elements of all tensors laid end to end; a piece is worked on in blocks that stay in the
// first-level cache, staged in the compute type where the storage type is another.

namespace apex::kernels::cpu {
namespace {

constexpr std::int64_t kBlock = 1024;

/// Where each tensor begins among all elements, and the total.
template <class V>
std::vector<std::int64_t> starts_of(std::span<const V> tensors) {
  std::vector<std::int64_t> start{0};
  for (const auto& t : tensors) start.push_back(start.back() + t.numel());
  return start;
}

/// Calls piece(tensor, begin, end) so that all elements of all tensors are covered, in parallel.
template <class V, class F>
void for_each_piece(std::span<const V> tensors, F&& piece) {
  const auto start = starts_of(tensors);
  parallel_ranges(start.back(), 1, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(start.begin(), start.end(), begin) - start.begin() - 1);
    for (; i < tensors.size() && start[i] < end; ++i) {
      const std::int64_t from = std::max(begin, start[i]), to = std::min(end, start[i + 1]);
      if (from < to) piece(i, from - start[i], to - start[i]);
    }
  });
}

/// n elements of `v` from `at` on in type C: where they are, or converted into `buffer`.
template <class C>
const C* staged(const ConstView& v, std::int64_t at, std::int64_t n, C* buffer) {
  if (v.dtype == dtype_of<C>) return v.as<C>() + at;
  visit_floating(v.dtype, "multi_tensor", [&]<class T>() { load_block(buffer, v.as<T>() + at, 1, n); });
  return buffer;
}

/// Where results for elements of `v` are formed: in place, or in `buffer` until put back.
template <class C>
C* target(const View& v, std::int64_t at, C* buffer) {
  return v.dtype == dtype_of<C> ? v.as<C>() + at : buffer;
}
template <class C>
void put_back(const View& v, std::int64_t at, std::int64_t n, const C* values) {
  if (v.dtype == dtype_of<C>) return;
  visit_floating(v.dtype, "multi_tensor", [&]<class T>() { store_block(v.as<T>() + at, 1, values, n); });
}

template <class C>
bool any_bad(const C* x, std::int64_t n) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (std::int64_t i = 0; i < n; ++i) bad |= !(std::abs(x[i]) <= std::numeric_limits<C>::max());
  return bad != 0;
}

/// Non-finite once stored: a value beyond the storage type's range has become infinite.
template <class C>
bool stored_bad(const View& v, std::int64_t at, std::int64_t n) {
  C buffer[kBlock];
  return any_bad(staged<C>(v, at, n, buffer), n);
}

void raise(const View& flag, bool bad) {
  if (bad && flag.defined()) *flag.as<std::int32_t>() = 1;
}

/// Calls f.operator()<C>() with f64 if any of the lists is f64, else f32.
template <class F>
void with_compute_type(bool wide, F&& f) {
  wide ? f.template operator()<double>() : f.template operator()<float>();
}
template <class V>
bool is_wide(std::span<const V> list) {
  return !list.empty() && list[0].dtype == DType::f64;
}

template <class F>
void in_blocks(std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t at = begin; at < end; at += kBlock) f(at, std::min(kBlock, end - at));
}

}  // namespace

void multi_tensor_scale(const Context&, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t) {
  std::atomic<bool> bad{false};
  with_compute_type(is_wide(in) || is_wide(out), [&]<class C>() {
    const C factor = static_cast<C>(scale);
    for_each_piece(in, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      bool seen = false;
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C from_buffer[kBlock], to_buffer[kBlock];
        const C* x = staged<C>(in[i], at, n, from_buffer);
        C* y = target<C>(out[i], at, to_buffer);
        seen |= any_bad(x, n);
#pragma omp simd
        for (std::int64_t k = 0; k < n; ++k) y[k] = x[k] * factor;
        put_back(out[i], at, n, y);
        seen |= stored_bad<C>(out[i], at, n);
      });
      if (seen) bad = true;
    });
  });
  raise(flag, bad);
}

void multi_tensor_axpby(const Context&, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check, std::int64_t) {
  std::atomic<bool> bad{false};
  with_compute_type(is_wide(x) || is_wide(y) || is_wide(out), [&]<class C>() {
    const C fa = static_cast<C>(a), fb = static_cast<C>(b);
    for_each_piece(x, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      bool seen = false;
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C x_buffer[kBlock], y_buffer[kBlock], out_buffer[kBlock];
        const C* p = staged<C>(x[i], at, n, x_buffer);
        const C* q = staged<C>(y[i], at, n, y_buffer);
        C* to = target<C>(out[i], at, out_buffer);
        if (check != CheckArgs::y) seen |= any_bad(p, n);
        if (check != CheckArgs::x) seen |= any_bad(q, n);
#pragma omp simd
        for (std::int64_t k = 0; k < n; ++k) to[k] = fa * p[k] + fb * q[k];
        put_back(out[i], at, n, to);
        if (check == CheckArgs::both) seen |= stored_bad<C>(out[i], at, n);
      });
      if (seen) bad = true;
    });
  });
  raise(flag, bad);
}

void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size) {
  struct Chunk {
    std::size_t tensor;
    std::int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t n = x[i].numel();
    total += n;
    for (std::int64_t at = 0; at < n; at += chunk_size) chunks.push_back({i, at, std::min(at + chunk_size, n)});
  }
  const Workspace memory = ctx.workspace((chunks.size() + x.size()) * sizeof(double));
  double* sums = memory.as<double>();
  double* tensors = sums + chunks.size();
  const auto count = static_cast<std::int64_t>(chunks.size());
  if (count > 0)
    visit_floating(x[0].dtype, "multi_tensor_l2norm", [&]<class T>() {
      using C = accum_t<T>;
      parallel_for(count, total / count + 1, [&](std::int64_t k) {
        const Chunk& c = chunks[static_cast<std::size_t>(k)];
        const T* from = x[c.tensor].as<T>() + c.begin;
        sums[k] = 0;
        in_blocks(0, c.end - c.begin, [&](std::int64_t at, std::int64_t n) {  // many terms in f32 would lose bits
          sums[k] += static_cast<double>(simd::sum<C>(n, [from, at](std::int64_t i) {
            const C v = convert<C>(from[at + i]);
            return v * v;
          }));
        });
        if (!std::isfinite(static_cast<C>(sums[k]))) sums[k] = static_cast<double>(static_cast<C>(sums[k]));
      });
    });
  std::fill_n(tensors, x.size(), 0.0);
  double sum = 0;
  bool bad = false;
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    tensors[chunks[k].tensor] += sums[k];
    bad |= !std::isfinite(sums[k]);
  }
  for (std::size_t i = 0; i < x.size(); ++i) sum += tensors[i];
  visit_wide_floating(norm.dtype, "multi_tensor_l2norm", [&]<class A>() {
    *norm.as<A>() = static_cast<A>(std::sqrt(sum));
    if (per_tensor.defined())
      for (std::size_t i = 0; i < x.size(); ++i) per_tensor.as<A>()[i] = static_cast<A>(std::sqrt(tensors[i]));
  });
  raise(flag, bad);
}

namespace {

/// Hyper-parameters in the compute type, each narrowed once; complements are formed after narrowing.
template <class C>
struct Sgd {
  C lr, momentum, damped, weight_decay, scale;
  bool has_momentum, nesterov, decay_first, decay_last;

  explicit Sgd(const SgdOptions& o)
      : lr(static_cast<C>(o.lr)),
        momentum(static_cast<C>(o.momentum)),
        damped(C(1) - static_cast<C>(o.dampening)),
        weight_decay(static_cast<C>(o.weight_decay)),
        scale(static_cast<C>(o.scale)),
        has_momentum(o.momentum != 0),
        nesterov(o.nesterov),
        decay_first(o.weight_decay != 0 && !o.wd_after_momentum),
        decay_last(o.weight_decay != 0 && o.wd_after_momentum) {
    if (o.lr_on_device.defined()) lr = static_cast<C>(*o.lr_on_device.as<double>());
    if (o.inv_scale.defined()) scale *= static_cast<C>(*o.inv_scale.as<float>());
  }

  /// One block, all of it in the first-level cache: g is consumed, p and buf are updated.
  void step(C* p, C* buf, const C* grad, C* g, std::int64_t n, bool first) const {
    if (decay_first) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) g[i] = grad[i] * scale + weight_decay * p[i];
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) g[i] = grad[i] * scale;
    }
    if (has_momentum) {
      if (first) {
        std::copy_n(g, n, buf);
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) buf[i] = momentum * buf[i] + damped * g[i];
      }
      if (nesterov) {
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) g[i] = g[i] + momentum * buf[i];
      } else {
        std::copy_n(buf, n, g);
      }
    }
    if (decay_last) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) g[i] += weight_decay * p[i];
    }
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) p[i] += -lr * g[i];
  }
};

}  // namespace

void multi_tensor_sgd(const Context&, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options) {
  if (flag.defined() && *flag.as<std::int32_t>() != 0) return;
  if (options.found_inf.defined() && *options.found_inf.as<float>() != 0.0f) return;
  with_compute_type(is_wide(params), [&]<class C>() {
    const Sgd<C> sgd(options);
    for_each_piece(params, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C p_buffer[kBlock], m_buffer[kBlock], g_buffer[kBlock], g[kBlock];
        C* p = target<C>(params[i], at, p_buffer);
        staged<C>(params[i], at, n, p);
        C* m = nullptr;
        const bool first = sgd.has_momentum && first_run[i] != 0;
        if (sgd.has_momentum) {
          m = target<C>(momenta[i], at, m_buffer);
          if (!first) staged<C>(momenta[i], at, n, m);
        }
        sgd.step(p, m, staged<C>(grads[i], at, n, g_buffer), g, n, first);
        put_back(params[i], at, n, p);
        if (sgd.has_momentum) put_back(momenta[i], at, n, m);
        if (!copies.empty()) put_back(copies[i], at, n, p);
      });
    });
  });
}

namespace {
/// n elements from one view to another, converted and multiplied.
void move_scaled(const View& to, std::int64_t to_at, const ConstView& from, std::int64_t from_at, std::int64_t n,
                 double scale) {
  if (to.dtype == from.dtype && scale == 1.0) {
    const auto size = static_cast<std::int64_t>(size_of(to.dtype));
    std::copy_n(from.as<char>() + from_at * size, n * size, to.as<char>() + to_at * size);
    return;
  }
  with_compute_type(to.dtype == DType::f64 || from.dtype == DType::f64, [&]<class C>() {
    const C factor = static_cast<C>(scale);
    in_blocks(0, n, [&](std::int64_t at, std::int64_t count) {
      C from_buffer[kBlock], to_buffer[kBlock];
      const C* x = staged<C>(from, from_at + at, count, from_buffer);
      C* y = target<C>(to, to_at + at, to_buffer);
#pragma omp simd
      for (std::int64_t k = 0; k < count; ++k) y[k] = x[k] * factor;
      put_back(to, to_at + at, count, y);
    });
  });
}
}  // namespace

void flatten(const Context&, View flat, std::span<const ConstView> tensors, double scale) {
  const auto start = starts_of(tensors);
  for_each_piece(tensors, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    move_scaled(flat, start[i] + begin, tensors[i], begin, end - begin, scale);
  });
}

void unflatten(const Context&, std::span<const View> tensors, ConstView flat, double scale) {
  const auto start = starts_of(tensors);
  for_each_piece(tensors, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    move_scaled(tensors[i], begin, flat, start[i] + begin, end - begin, scale);
  });
}

}  // namespace apex::kernels::cpu
