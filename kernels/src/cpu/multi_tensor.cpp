// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor.hpp"

namespace apex::kernels::cpu {

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
