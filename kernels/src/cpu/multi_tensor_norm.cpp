// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <bit>

#include "multi_tensor_step.hpp"

namespace apex::kernels::cpu {
namespace {

/// Fills the results with zeros.
void put_zeros(const Norms& n) {
  visit_wide_floating(n.norm.dtype, "norms", [&]<class A>() {
    *n.norm.as<A>() = A(0);
    if (n.per_tensor.defined()) std::fill_n(n.per_tensor.as<A>(), n.in.size(), A(0));
  });
}

/// The sum of squares or the largest magnitude of each tensor; whether something is to be detected.
template <class C>
bool measure(const Context& ctx, const Norms& n, double* each) {
  const C by = n.inv_scale.defined() ? static_cast<C>(*n.inv_scale.as<float>()) : C(1);
  bool bad = false;
  if (n.type == NormType::inf) {
    std::vector<C> largest(n.in.size());
    max_tensors<C>(n.in, by, largest.data());
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      each[i] = static_cast<double>(largest[i]);
      bad |= !std::isfinite(largest[i]);
    }
    return bad;
  }
  std::atomic<bool> bad_result{false};
  const C scale = static_cast<C>(n.scale);
  sum_tensors<1>(
      ctx, n.in, n.chunk_size, each,
      [&](std::size_t i, std::int64_t at, std::int64_t count, double* sum) {
        C buffer[kBlock], out_buffer[kBlock];
        const C* x = staged<C>(n.in[i], at, count, buffer);
        *sum += static_cast<double>(simd::sum<C>(count, [=](std::int64_t k) {
          const C v = x[k] * by;
          return v * v;
        }));
        if (!n.out.empty()) {
          C* y = target<C>(n.out[i], at, out_buffer);
#pragma omp simd
          for (std::int64_t k = 0; k < count; ++k) y[k] = x[k] * scale;
          put_back(n.out[i], at, count, y);
          if (stored_bad<C>(n.out[i], at, count)) bad_result = true;
        }
      },
      [&](double* sum) {
        const C narrow = static_cast<C>(*sum);
        if (std::isfinite(narrow)) return;
        *sum = static_cast<double>(narrow);
        bad = true;
      });
  return bad || bad_result;
}

/// Norms of single tensors and of all from what was measured.
template <class A>
void finish(const Norms& n, const std::vector<double>& each) {
  const bool l2 = n.type == NormType::l2;
  double all = 0;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (l2)
      all += each[i];
    else
      all = each[i] > all || std::isnan(each[i]) ? each[i] : all;
    if (!n.per_tensor.defined()) continue;
    const double norm = l2 ? std::sqrt(each[i]) : each[i];
    A& to = n.per_tensor.as<A>()[i];
    if (!n.blends) {
      to = static_cast<A>(norm);
    } else {
      const A a = static_cast<A>(n.alpha), b = static_cast<A>(n.beta), fresh = static_cast<A>(norm);
      to = l2 ? std::sqrt(a * to * to + b * fresh * fresh) : a * to + b * fresh;
    }
  }
  if (n.norm.defined()) *n.norm.as<A>() = static_cast<A>(l2 ? std::sqrt(all) : all);
}

}  // namespace

void multi_tensor_norms(const Context& ctx, const Norms& n) {
  if (n.skips && is_set(n.flag)) return put_zeros(n);
  std::vector<double> each(n.in.size());
  bool bad = false;
  with_compute_type(is_wide(n.in), [&]<class C>() { bad = measure<C>(ctx, n, each.data()); });
  const DType dtype = n.norm.defined() ? n.norm.dtype : n.per_tensor.dtype;
  visit_wide_floating(dtype, "norms", [&]<class A>() { finish<A>(n, each); });
  raise(n.flag, bad);
}

void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size) {
  multi_tensor_norms(ctx, {.flag = flag,
                           .norm = norm,
                           .per_tensor = per_tensor,
                           .in = x,
                           .out = {},
                           .inv_scale = {},
                           .chunk_size = chunk_size});
}

void multi_tensor_clip(const Context&, std::span<const View> x, ConstView norm, double max_norm) {
  double coefficient = 0;
  visit_wide_floating(norm.dtype, "multi_tensor_clip", [&]<class A>() {
    const A c = static_cast<A>(max_norm) / (*norm.as<A>() + static_cast<A>(1e-6));
    coefficient = static_cast<double>(c >= A(1) ? A(1) : c);  // NaN stays
  });
  if (coefficient == 1.0) return;
  with_compute_type(is_wide(x), [&]<class C>() {
    const C by = static_cast<C>(coefficient);
    for_each_piece(x, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C buffer[kBlock];
        C* p = target<C>(x[i], at, buffer);
        staged<C>(x[i], at, n, p);
#pragma omp simd
        for (std::int64_t k = 0; k < n; ++k) p[k] *= by;
        put_back(x[i], at, n, p);
      });
    });
  });
}

void update_scale_hysteresis(const Context&, View scale, View growth, View hysteresis, ConstView found_inf,
                             const ScaleRule& rule) {
  rule.update(*scale.as<float>(), *growth.as<std::int32_t>(), *hysteresis.as<std::int32_t>(), *found_inf.as<float>());
}

namespace {

/// Floating or e5m2 to the other.
template <class From, class To>
void cast(const From* from, To* to, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k) {
    if constexpr (std::is_same_v<From, To>)
      to[k] = from[k];
    else if constexpr (std::is_same_v<From, std::uint8_t>)
      to[k] = convert<To>(std::bit_cast<float16>(static_cast<std::uint16_t>(from[k] << 8)));
    else if constexpr (std::is_same_v<To, std::uint8_t>)
      to[k] = optimizer::e5m2_of(std::bit_cast<std::uint16_t>(convert<float16>(from[k])));
    else
      to[k] = convert<To>(from[k]);
  }
}

template <class F>
void visit_castable(DType dtype, F&& f) {
  if (dtype == DType::u8) return f.template operator()<std::uint8_t>();
  visit_floating(dtype, "multi_tensor_maybe_cast", f);
}

}  // namespace

void multi_tensor_maybe_cast(const Context&, View flag, std::span<const View> out, std::span<const ConstView> in) {
  if (is_set(flag)) return;
  visit_castable(in[0].dtype, [&]<class From>() {
    visit_castable(out[0].dtype, [&]<class To>() {
      for_each_piece(in, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
        cast(in[i].as<From>() + begin, out[i].as<To>() + begin, end - begin);
      });
    });
  });
}

}  // namespace apex::kernels::cpu
