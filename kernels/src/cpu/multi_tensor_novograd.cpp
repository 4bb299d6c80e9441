// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_step.hpp"

namespace apex::kernels::cpu {
namespace {

/// Of each tensor: the l2 or largest norm of its scaled gradient.
template <class C>
std::vector<C> norms_of(const Context& ctx, std::span<const ConstView> grads, C scale, NormType type) {
  std::vector<double> sums(grads.size());
  std::vector<C> norms(grads.size());
  if (type == NormType::l2) {
    sum_tensors<1>(
        ctx, grads, kDefaultChunk, sums.data(),
        [&](std::size_t i, std::int64_t at, std::int64_t n, double* sum) {
          C buffer[kBlock];
          const C* g = staged<C>(grads[i], at, n, buffer);
          *sum += static_cast<double>(simd::sum<C>(n, [=](std::int64_t k) {
            const C v = g[k] * scale;
            return v * v;
          }));
        },
        [](const double*) {});
    for (std::size_t i = 0; i < norms.size(); ++i) norms[i] = static_cast<C>(std::sqrt(sums[i]));
  } else {
    max_tensors<C>(grads, scale, norms.data());
  }
  return norms;
}

template <bool kInside, class C>
void step_block(const optimizer::NovoGrad<C>& rule, C below, const optimizer::Corrections<C>& c,
                const StepValues<C>& values, C* p, C* m, const C* grad, std::int64_t n) {
  const auto r = rule;
  const auto by = c;
  const C lr = values.lr, scale = values.scale;
#pragma omp simd
  for (std::int64_t k = 0; k < n; ++k) p[k] = r.template step<kInside>(p[k], m[k], grad[k] * scale, below, by, lr);
}

}  // namespace

void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options) {
  if (skips(options.in)) return;
  with_compute_type(is_wide(params), [&]<class C>() {
    const optimizer::NovoGrad<C> rule(options);
    const StepValues<C> values(options.in, options.lr);
    const TensorSteps<C> corrections(steps, options.step, rule.corrections(options), true);
    const auto fresh = norms_of<C>(ctx, grads, values.scale, options.norm_type);
    for (std::size_t i = 0; i < norms.size(); ++i) {
      C& kept = *norms[i].as<C>();
      kept = rule.blend(kept, fresh[i], corrections.count(i) == 1);
    }
    for_each_piece(params, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      const C below = rule.divisor(*norms[i].as<C>(), corrections[i]);
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C p_buffer[kBlock], g_buffer[kBlock];
        C* p = target<C>(params[i], at, p_buffer);
        C* m = exp_avg[i].as<C>() + at;
        staged<C>(params[i], at, n, p);
        const C* grad = staged<C>(grads[i], at, n, g_buffer);
        if (rule.inside)
          step_block<true>(rule, below, corrections[i], values, p, m, grad, n);
        else
          step_block<false>(rule, below, corrections[i], values, p, m, grad, n);
        put_back(params[i], at, n, p);
        if (!copies.empty()) put_copy(copies[i], at, n, p);
      });
    });
  });
}

}  // namespace apex::kernels::cpu
