// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cstring>

#include "multi_tensor_step.hpp"

namespace apex::kernels::cpu {
namespace {

using optimizer::Adam;
using optimizer::Corrections;

template <AdamMode kMode, class C>
void step_block(const Adam<C>& adam, const Corrections<C>& c, const StepValues<C>& values, C* p, C* m, C* v,
                const C* grad, std::int64_t n) {
  constexpr optimizer::AdamForm form = optimizer::AdamForm::of(kMode);
  const Adam<C> a = adam;  // by value: the compiler need not fear that p is one of its members
  const Corrections<C> by = c;
  const C length = a.length(form, values.lr, by), scale = values.scale;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) p[i] = a.step(form, p[i], m[i], v[i], grad[i] * scale, by, length);
}

/// Calls f.operator()<mode>().
template <class F>
void visit_mode(AdamMode mode, F&& f) {
  switch (mode) {
    case AdamMode::l2: return f.template operator()<AdamMode::l2>();
    case AdamMode::decoupled: return f.template operator()<AdamMode::decoupled>();
    case AdamMode::torch_order: return f.template operator()<AdamMode::torch_order>();
    case AdamMode::legacy: return f.template operator()<AdamMode::legacy>();
    case AdamMode::legacy_eps_inside: return f.template operator()<AdamMode::legacy_eps_inside>();
  }
}

/// n weights from their halves.
void join(const View& high, const View& low, std::int64_t at, std::int64_t n, float* p) {
  std::uint16_t lower[kBlock];
  std::memcpy(lower, low.as<std::uint8_t>() + 2 * at, static_cast<std::size_t>(2 * n));
  const auto* upper = reinterpret_cast<const std::uint16_t*>(high.as<bfloat16>()) + at;
  std::uint32_t bits[kBlock];
  for (std::int64_t i = 0; i < n; ++i) bits[i] = optimizer::join_halves(upper[i], lower[i]);
  std::memcpy(p, bits, static_cast<std::size_t>(4 * n));
}

void split(const View& high, const View& low, const View* copy, std::int64_t at, std::int64_t n, const float* p) {
  std::uint32_t bits[kBlock];
  std::memcpy(bits, p, static_cast<std::size_t>(4 * n));
  std::uint16_t lower[kBlock];
  auto* upper = reinterpret_cast<std::uint16_t*>(high.as<bfloat16>()) + at;
  for (std::int64_t i = 0; i < n; ++i) {
    lower[i] = static_cast<std::uint16_t>(bits[i] & 0xffffu);
    upper[i] = optimizer::high_half(bits[i]);
  }
  std::memcpy(low.as<std::uint8_t>() + 2 * at, lower, static_cast<std::size_t>(2 * n));
  if (copy != nullptr) std::copy_n(upper, n, reinterpret_cast<std::uint16_t*>(copy->as<bfloat16>()) + at);
}

template <class C>
void run(const AdamLists& l, const AdamOptions& o) {
  const Adam<C> adam(o);
  const StepValues<C> values(o.in, o.lr, o.maximize);
  const TensorSteps<C> corrections(l.steps, o.step, adam.corrections(o), true);
  const C share = C(1) - static_cast<C>(l.swa_decay);
  const bool halves = !l.remainders.empty();
  visit_mode(o.mode, [&]<AdamMode kMode>() {
    for_each_piece(l.params, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C p_buffer[kBlock], m_buffer[kBlock], v_buffer[kBlock], g_buffer[kBlock];
        C* p = halves ? p_buffer : target<C>(l.params[i], at, p_buffer);
        C* m = target<C>(l.exp_avg[i], at, m_buffer);
        C* v = target<C>(l.exp_avg_sq[i], at, v_buffer);
        if constexpr (std::is_same_v<C, float>) {
          if (halves) join(l.params[i], l.remainders[i], at, n, p);
        }
        if (!halves) staged<C>(l.params[i], at, n, p);
        staged<C>(l.exp_avg[i], at, n, m);
        staged<C>(l.exp_avg_sq[i], at, n, v);
        step_block<kMode>(adam, corrections[i], values, p, m, v, staged<C>(l.grads[i], at, n, g_buffer), n);
        put_back(l.exp_avg[i], at, n, m);
        put_back(l.exp_avg_sq[i], at, n, v);
        if constexpr (std::is_same_v<C, float>) {
          if (halves) return split(l.params[i], l.remainders[i], l.copies.empty() ? nullptr : &l.copies[i], at, n, p);
        }
        put_back(l.params[i], at, n, p);
        if (!l.copies.empty()) put_copy(l.copies[i], at, n, p);
        if (l.swa.empty()) return;
        C* average = target<C>(l.swa[i], at, m_buffer);  // m is done with
        if (l.swa_count == 0) {
          std::copy_n(p, n, average);
        } else {
          staged<C>(l.swa[i], at, n, average);
#pragma omp simd
          for (std::int64_t k = 0; k < n; ++k) average[k] += share * (p[k] - average[k]);
        }
        put_back(l.swa[i], at, n, average);
      });
    });
  });
}

}  // namespace

void multi_tensor_adam(const Context&, const AdamLists& lists, const AdamOptions& options) {
  if (skips(options.in)) return;
  with_compute_type(is_wide(lists.params), [&]<class C>() { run<C>(lists, options); });
}

}  // namespace apex::kernels::cpu
