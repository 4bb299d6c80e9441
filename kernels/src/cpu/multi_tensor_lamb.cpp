// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_step.hpp"

namespace apex::kernels::cpu {
namespace {

using optimizer::Lamb;

double norm_of(const ConstView& v) {
  if (!v.defined()) return 0;
  return v.dtype == DType::f64 ? *v.as<double>() : static_cast<double>(*v.as<float>());
}
bool skips(const LambOptions& o) { return cpu::skips(o.in) || !std::isfinite(norm_of(o.grad_norm)); }

template <class C>
double squares_of(const C* x, std::int64_t n) {
  return static_cast<double>(simd::sum<C>(n, [x](std::int64_t k) { return x[k] * x[k]; }));
}

template <class C>
void run_moments(const Context& ctx, double* squares, const LambMoments& l, const LambOptions& o) {
  const Lamb<C> lamb(o);
  const StepValues<C> values(o.in, o.lr);
  const TensorSteps<C> corrections(l.steps, o.step, lamb.corrections(o), true);
  const C clip = lamb.clip(static_cast<C>(norm_of(o.grad_norm))), scale = values.scale;
  std::vector<double> unused;
  if (squares == nullptr) {
    unused.resize(2 * l.params.size());
    squares = unused.data();
  }
  sum_tensors<2>(
      ctx, l.params, kDefaultChunk, squares,
      [&](std::size_t i, std::int64_t at, std::int64_t n, double* sums) {
        C p_buffer[kBlock], g_buffer[kBlock], u[kBlock];
        const C* p = staged<C>(l.params[i], at, n, p_buffer);
        C* m = l.exp_avg[i].as<C>() + at;
        C* v = l.exp_avg_sq[i].as<C>() + at;
        const C* grad = staged<C>(l.grads[i], at, n, g_buffer);
        const C decay = l.weight_decay.empty() ? lamb.weight_decay : static_cast<C>(l.weight_decay[i]);
        const auto rule = lamb;
        const auto by = corrections[i];
#pragma omp simd
        for (std::int64_t k = 0; k < n; ++k) u[k] = rule.moment(p[k], m[k], v[k], grad[k] * scale, clip, decay, by);
        if (!l.updates.empty()) put_copy(l.updates[i], at, n, u);
        sums[0] += squares_of(p, n);
        sums[1] += squares_of(u, n);
      },
      [](const double*) {});
}

/// p -= ratio u, where u(i, at, n, p, buffer) gives n elements of tensor i.
template <class C, class Update>
void apply(std::span<const View> params, std::span<const View> copies, const std::vector<C>& ratios, Update&& update) {
  for_each_piece(params, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
      C p_buffer[kBlock], u_buffer[kBlock];
      C* p = target<C>(params[i], at, p_buffer);
      staged<C>(params[i], at, n, p);
      const C* u = update(i, at, n, p, u_buffer);
      const C ratio = ratios[i];
#pragma omp simd
      for (std::int64_t k = 0; k < n; ++k) p[k] -= ratio * u[k];
      put_back(params[i], at, n, p);
      if (!copies.empty()) put_copy(copies[i], at, n, p);
    });
  });
}

}  // namespace

void multi_tensor_lamb_moments(const Context& ctx, double* squares, const LambMoments& lists,
                               const LambOptions& options) {
  if (skips(options)) return;
  with_compute_type(is_wide(lists.params), [&]<class C>() { run_moments<C>(ctx, squares, lists, options); });
}

void multi_tensor_lamb_apply(const Context&, const double* squares, const LambApply& l, const LambOptions& options) {
  if (skips(options)) return;
  with_compute_type(is_wide(l.params), [&]<class C>() {
    const Lamb<C> lamb(options);
    const StepValues<C> values(options.in, options.lr);
    const TensorSteps<C> corrections(l.steps, options.step, lamb.corrections(options), false);
    std::vector<C> ratios;
    for (std::size_t i = 0; i < l.params.size(); ++i)
      ratios.push_back(optimizer::trust_ratio(values.lr, static_cast<C>(std::sqrt(squares[2 * i])),
                                              static_cast<C>(std::sqrt(squares[2 * i + 1])), lamb.adapts));
    apply<C>(l.params, l.copies, ratios, [&](std::size_t i, std::int64_t at, std::int64_t n, const C* p, C* u) {
      const C* m = l.exp_avg[i].as<C>() + at;
      const C* v = l.exp_avg_sq[i].as<C>() + at;
      const auto rule = lamb;
      const auto by = corrections[i];
#pragma omp simd
      for (std::int64_t k = 0; k < n; ++k) u[k] = rule.update(p[k], m[k], v[k], rule.weight_decay, by);
      return u;
    });
  });
}

void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& options) {
  const Workspace squares = ctx.workspace(2 * params.size() * sizeof(double));
  const std::vector<ConstView> read(params.begin(), params.end()), m(exp_avg.begin(), exp_avg.end()),
      v(exp_avg_sq.begin(), exp_avg_sq.end());
  const LambMoments moments{.params = read,
                            .exp_avg = exp_avg,
                            .exp_avg_sq = exp_avg_sq,
                            .updates = {},
                            .weight_decay = {},
                            .grads = grads,
                            .steps = steps};
  multi_tensor_lamb_moments(ctx, squares.as<double>(), moments, options);
  multi_tensor_lamb_apply(ctx, squares.as<double>(),
                          {.params = params, .copies = copies, .exp_avg = m, .exp_avg_sq = v, .steps = steps}, options);
}

void multi_tensor_lamb_stage2(const Context&, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, bool adapts) {
  with_compute_type(is_wide(params), [&]<class C>() {
    std::vector<C> ratios;
    for (std::size_t i = 0; i < params.size(); ++i)
      ratios.push_back(
          optimizer::trust_ratio(static_cast<C>(lr), param_norms.as<C>()[i], update_norms.as<C>()[i], adapts));
    apply<C>(params, {}, ratios, [&](std::size_t i, std::int64_t at, std::int64_t n, const C*, C* buffer) {
      return staged<C>(updates[i], at, n, buffer);
    });
  });
}

}  // namespace apex::kernels::cpu
