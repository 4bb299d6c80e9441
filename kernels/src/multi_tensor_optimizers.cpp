// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_optimizers_impl.hpp"

#include <cmath>

#include "backend_impl.hpp"
#include "multi_tensor_checks.hpp"

namespace apex::kernels {

using namespace lists;

namespace {

/// Runs the backend of ctx.device. A template, so that nothing refers to a backend that is not built.
template <class Cpu, class Cuda>
void dispatch(const char* op, const Context& ctx, Cpu&& on_cpu, Cuda&& on_cuda) {
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return on_cpu();
    case DeviceKind::cuda:
      if constexpr (has_cuda) return on_cuda();
  }
  throw_not_built(op, ctx.device);
}

void check_inputs(const char* op, const Context& ctx, const StepInputs& in) {
  check_flag(op, ctx, in.flag);
  check_scalar(op, ctx, "found_inf", in.found_inf);
  check_scalar(op, ctx, "inv_scale", in.inv_scale);
  check_scalar(op, ctx, "lr_on_device", in.lr_on_device, DType::f64);
}

template <class P, class V>
void check_beside(const char* op, const Context& ctx, const char* name, std::span<const V> list,
                  std::span<const P> params) {
  check_whole_list(op, ctx, name, list);
  check_matches(op, name, list, "params", params);
}

template <class P>
void check_grads(const char* op, const Context& ctx, std::span<const ConstView> grads, std::span<const P> params) {
  check_beside(op, ctx, "grads", grads, params);
  check_precision(op, "grads", grads, params);
}

/// Moments and sums: the type they are computed in, or (Adam) a 16-bit one.
template <class P, class V>
void check_state(const char* op, const Context& ctx, const char* name, std::span<const V> list,
                 std::span<const P> params, bool may_be_narrow = false) {
  check_beside(op, ctx, name, list, params);
  if (list.empty()) return;
  const DType wide = accum_dtype(params[0].dtype);
  const auto first = concat(name, "[0]");
  if (may_be_narrow && wide == DType::f32)
    check_dtype(op, first.c_str(), list[0], {DType::f32, DType::bf16, DType::f16});
  else
    check_dtype(op, first.c_str(), list[0], wide);
}

template <class P>
void check_copies(const char* op, const Context& ctx, std::span<const View> copies, std::span<const P> params) {
  if (!copies.empty()) check_beside(op, ctx, "copies", copies, params);
}

/// A count on the device for each tensor, one for all, or one on the host.
void check_steps(const char* op, const Context& ctx, std::span<const View> steps, std::int64_t step,
                 std::size_t tensors) {
  if (tensors == 0) return;
  if (steps.empty()) {
    if (step < 1)
      fail(Kind::argument, concat(op, ": step is ", step, " and no steps are given; the first update is 1"));
    return;
  }
  if (step != 0) fail(Kind::argument, concat(op, ": both steps and step ", step, " are given, wanted one of them"));
  if (steps.size() != tensors && steps.size() != 1)
    fail(Kind::argument, concat(op, ": ", steps.size(), " steps and ", tensors, " params"));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const ConstView v(steps[i]);
    if (!v.defined()) fail(Kind::argument, place(op, "steps", i) + " is not given");
    if (v.device != ctx.device || v.dtype != DType::i32 || v.numel() != 1)
      fail(Kind::argument, concat(place(op, "steps", i), " is ", v.dtype, " of sizes ", v.sizes, " on ", v.device,
                                  ", wanted one i32 element on ", ctx.device));
  }
}

void run_adam(const char* op, const Context& ctx, const AdamLists& l, const AdamOptions& options) {
  check_inputs(op, ctx, options.in);
  check_state(op, ctx, "exp_avg", l.exp_avg, l.params, true);
  check_state(op, ctx, "exp_avg_sq", l.exp_avg_sq, l.params, true);
  if (!l.params.empty() && l.exp_avg[0].dtype != l.exp_avg_sq[0].dtype)
    fail(Kind::argument, concat(op, ": exp_avg are ", l.exp_avg[0].dtype, ", exp_avg_sq ", l.exp_avg_sq[0].dtype));
  check_copies(op, ctx, l.copies, l.params);
  check_grads(op, ctx, l.grads, l.params);
  check_steps(op, ctx, l.steps, options.step, l.params.size());
  if (l.params.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_adam(ctx, l, options); }, [&] { cuda::multi_tensor_adam(ctx, l, options); });
}

}  // namespace

void multi_tensor_adam(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const AdamOptions& options) {
  constexpr const char* op = "multi_tensor_adam";
  check_whole_list(op, ctx, "params", params);
  run_adam(op, ctx,
           {.params = params,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .copies = copies,
            .grads = grads,
            .steps = steps},
           options);
}

void multi_tensor_adam_remainders(const Context& ctx, std::span<const View> params, std::span<const View> remainders,
                                  std::span<const View> exp_avg, std::span<const View> exp_avg_sq,
                                  std::span<const View> copies, std::span<const ConstView> grads,
                                  std::span<const View> steps, const AdamOptions& options) {
  constexpr const char* op = "multi_tensor_adam_remainders";
  check_whole_list(op, ctx, "params", params);
  if (remainders.size() != params.size())
    fail(Kind::argument, concat(op, ": ", remainders.size(), " remainders and ", params.size(), " params"));
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto name = concat("remainders[", i, "]");
    check_dtype(op, concat("params[", i, "]").c_str(), params[i], DType::bf16);
    check_given(op, ctx, name.c_str(), remainders[i]);
    check_dtype(op, name.c_str(), remainders[i], DType::u8);
    if (!remainders[i].is_contiguous() || remainders[i].numel() != 2 * params[i].numel())
      fail(Kind::argument, concat(op, ": ", name, " has sizes ", remainders[i].sizes, " and strides ",
                                  remainders[i].strides, ", wanted ", 2 * params[i].numel(), " bytes in row order"));
  }
  if (!copies.empty() && copies[0].defined()) check_dtype(op, "copies[0]", copies[0], DType::bf16);
  run_adam(op, ctx,
           {.params = params,
            .remainders = remainders,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .copies = copies,
            .grads = grads,
            .steps = steps},
           options);
}

void multi_tensor_adam_swa(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const View> swa,
                           std::span<const ConstView> grads, std::span<const View> steps, const AdamOptions& options,
                           double decay, std::int64_t n_averaged) {
  constexpr const char* op = "multi_tensor_adam_swa";
  check_whole_list(op, ctx, "params", params);
  check_beside(op, ctx, "swa", swa, params);
  if (!params.empty()) check_dtype(op, "swa[0]", swa[0], params[0].dtype);
  if (options.mode >= AdamMode::legacy)
    fail(Kind::argument, concat(op, ": the legacy modes do not go with an average of weights"));
  if (n_averaged < 0) fail(Kind::argument, concat(op, ": n_averaged is ", n_averaged, ", wanted at least 0"));
  run_adam(op, ctx,
           {.params = params,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .copies = copies,
            .swa = swa,
            .grads = grads,
            .steps = steps,
            .swa_decay = decay,
            .swa_count = n_averaged},
           options);
}

void multi_tensor_adagrad(const Context& ctx, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options) {
  constexpr const char* op = "multi_tensor_adagrad";
  check_inputs(op, ctx, options.in);
  check_whole_list(op, ctx, "params", params);
  check_state(op, ctx, "sums", sums, params);
  check_copies(op, ctx, copies, params);
  check_grads(op, ctx, grads, params);
  if (params.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_adagrad(ctx, params, sums, copies, grads, options); },
      [&] { cuda::multi_tensor_adagrad(ctx, params, sums, copies, grads, options); });
}

void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options) {
  constexpr const char* op = "multi_tensor_novograd";
  check_inputs(op, ctx, options.in);
  check_whole_list(op, ctx, "params", params);
  check_state(op, ctx, "exp_avg", exp_avg, params);
  if (norms.size() != params.size())
    fail(Kind::argument, concat(op, ": ", norms.size(), " norms and ", params.size(), " params"));
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const auto name = concat("norms[", i, "]");
    check_given(op, ctx, name.c_str(), norms[i]);
    check_dtype(op, name.c_str(), norms[i], accum_dtype(params[0].dtype));
    if (norms[i].numel() != 1)
      fail(Kind::argument, concat(op, ": ", name, " has sizes ", norms[i].sizes, ", wanted one element"));
  }
  check_copies(op, ctx, copies, params);
  check_grads(op, ctx, grads, params);
  check_steps(op, ctx, steps, options.step, params.size());
  if (params.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_novograd(ctx, params, exp_avg, norms, copies, grads, steps, options); },
      [&] { cuda::multi_tensor_novograd(ctx, params, exp_avg, norms, copies, grads, steps, options); });
}

namespace {

void check_grad_norm(const char* op, const Context& ctx, const ConstView& norm, double max_grad_norm) {
  if (!norm.defined()) {
    if (max_grad_norm > 0)
      fail(Kind::argument, concat(op, ": grad_norm is not given, max_grad_norm ", max_grad_norm, " needs it"));
    return;
  }
  check_optional(op, ctx, "grad_norm", norm);
  check_wide_floating(op, "grad_norm", norm);
  if (norm.numel() != 1) fail(Kind::argument, concat(op, ": grad_norm has sizes ", norm.sizes, ", wanted one element"));
}

void check_squares(const char* op, const Context& ctx, const ConstView& squares, std::size_t tensors) {
  check_given(op, ctx, "squares", squares);
  check_dtype(op, "squares", squares, DType::f64);
  check_sizes(op, "squares", squares, {static_cast<std::int64_t>(tensors), 2});
  if (!squares.is_contiguous()) fail(Kind::argument, concat(op, ": squares has strides ", squares.strides));
}

}  // namespace

void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& options) {
  constexpr const char* op = "multi_tensor_lamb";
  check_inputs(op, ctx, options.in);
  check_grad_norm(op, ctx, options.grad_norm, options.max_grad_norm);
  check_whole_list(op, ctx, "params", params);
  check_state(op, ctx, "exp_avg", exp_avg, params);
  check_state(op, ctx, "exp_avg_sq", exp_avg_sq, params);
  check_copies(op, ctx, copies, params);
  check_grads(op, ctx, grads, params);
  check_steps(op, ctx, steps, options.step, params.size());
  if (params.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_lamb(ctx, params, exp_avg, exp_avg_sq, copies, grads, steps, options); },
      [&] { cuda::multi_tensor_lamb(ctx, params, exp_avg, exp_avg_sq, copies, grads, steps, options); });
}

void multi_tensor_lamb_moments(const Context& ctx, View squares, std::span<const ConstView> params,
                               std::span<const View> exp_avg, std::span<const View> exp_avg_sq,
                               std::span<const ConstView> grads, std::span<const View> steps,
                               const LambOptions& options) {
  constexpr const char* op = "multi_tensor_lamb_moments";
  check_inputs(op, ctx, options.in);
  check_grad_norm(op, ctx, options.grad_norm, options.max_grad_norm);
  check_whole_list(op, ctx, "params", params);
  check_squares(op, ctx, squares, params.size());
  check_state(op, ctx, "exp_avg", exp_avg, params);
  check_state(op, ctx, "exp_avg_sq", exp_avg_sq, params);
  check_grads(op, ctx, grads, params);
  check_steps(op, ctx, steps, options.step, params.size());
  if (params.empty()) return;
  const LambMoments l{.params = params, .exp_avg = exp_avg, .exp_avg_sq = exp_avg_sq, .grads = grads, .steps = steps};
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_lamb_moments(ctx, squares.as<double>(), l, options); },
      [&] { cuda::multi_tensor_lamb_moments(ctx, squares.as<double>(), l, options); });
}

void multi_tensor_lamb_apply(const Context& ctx, std::span<const View> params, std::span<const View> copies,
                             std::span<const ConstView> exp_avg, std::span<const ConstView> exp_avg_sq,
                             std::span<const ConstView> grads, std::span<const View> steps, ConstView squares,
                             const LambOptions& options) {
  constexpr const char* op = "multi_tensor_lamb_apply";
  check_inputs(op, ctx, options.in);
  check_grad_norm(op, ctx, options.grad_norm, options.max_grad_norm);
  check_whole_list(op, ctx, "params", params);
  check_squares(op, ctx, squares, params.size());
  check_state(op, ctx, "exp_avg", exp_avg, params);
  check_state(op, ctx, "exp_avg_sq", exp_avg_sq, params);
  check_copies(op, ctx, copies, params);
  if (!grads.empty()) check_grads(op, ctx, grads, params);
  check_steps(op, ctx, steps, options.step, params.size());
  if (params.empty()) return;
  const LambApply l{.params = params, .copies = copies, .exp_avg = exp_avg, .exp_avg_sq = exp_avg_sq, .steps = steps};
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_lamb_apply(ctx, squares.as<double>(), l, options); },
      [&] { cuda::multi_tensor_lamb_apply(ctx, squares.as<double>(), l, options); });
}

void multi_tensor_lamb_stage1(const Context& ctx, std::span<const ConstView> params, std::span<const View> exp_avg,
                              std::span<const View> exp_avg_sq, std::span<const View> updates,
                              std::span<const ConstView> grads, std::span<const double> weight_decay,
                              ConstView grad_norm, double max_grad_norm, std::int64_t step, double beta1, double beta2,
                              double eps) {
  constexpr const char* op = "multi_tensor_lamb_stage1";
  check_grad_norm(op, ctx, grad_norm, max_grad_norm);
  check_whole_list(op, ctx, "params", params);
  check_state(op, ctx, "exp_avg", exp_avg, params);
  check_state(op, ctx, "exp_avg_sq", exp_avg_sq, params);
  check_beside(op, ctx, "updates", updates, params);
  check_grads(op, ctx, grads, params);
  if (weight_decay.size() != params.size())
    fail(Kind::argument, concat(op, ": ", weight_decay.size(), " weight decays and ", params.size(), " params"));
  if (step < 0) fail(Kind::argument, concat(op, ": step is ", step, ", wanted the number of earlier updates"));
  if (params.empty()) return;
  LambOptions options;
  options.beta1 = beta1;
  options.beta2 = beta2;
  options.eps = eps;
  options.weight_decay = 0;
  options.max_grad_norm = max_grad_norm;
  options.grad_norm = grad_norm;
  options.step = step + 1;
  const LambMoments l{.params = params,
                      .exp_avg = exp_avg,
                      .exp_avg_sq = exp_avg_sq,
                      .updates = updates,
                      .weight_decay = weight_decay,
                      .grads = grads,
                      .steps = {}};
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_lamb_moments(ctx, nullptr, l, options); },
      [&] { cuda::multi_tensor_lamb_moments(ctx, nullptr, l, options); });
}

void multi_tensor_lamb_stage2(const Context& ctx, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, double weight_decay,
                              bool use_nvlamb) {
  constexpr const char* op = "multi_tensor_lamb_stage2";
  check_whole_list(op, ctx, "params", params);
  check_beside(op, ctx, "updates", updates, params);
  check_precision(op, "updates", updates, params);
  if (params.empty()) return;
  const auto count = static_cast<std::int64_t>(params.size());
  for (const auto& [name, v] : {std::pair{"param_norms", &param_norms}, {"update_norms", &update_norms}}) {
    check_given(op, ctx, name, *v);
    check_dtype(op, name, *v, accum_dtype(params[0].dtype));
    check_vector(op, name, *v, count);
  }
  const bool adapts = use_nvlamb || weight_decay != 0;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_lamb_stage2(ctx, params, updates, param_norms, update_norms, lr, adapts); },
      [&] { cuda::multi_tensor_lamb_stage2(ctx, params, updates, param_norms, update_norms, lr, adapts); });
}

namespace {

void run_norms(const char* op, const Context& ctx, const Norms& n) {
  check_flag(op, ctx, n.flag);
  check_whole_list(op, ctx, "in", n.in);
  const auto count = static_cast<std::int64_t>(n.in.size());
  const auto check_norms = [&](const char* name, const View& v) {
    check_dtype(op, name, v, n.in.empty() ? v.dtype : accum_dtype(n.in[0].dtype));
    check_wide_floating(op, name, v);
  };
  if (!n.blends) {
    check_given(op, ctx, "norm", n.norm);
    check_norms("norm", n.norm);
    if (n.norm.numel() != 1)
      fail(Kind::argument, concat(op, ": norm has sizes ", n.norm.sizes, ", wanted one element"));
  }
  const char* each = n.blends ? "norms" : "per_tensor";
  if (n.blends)
    check_given(op, ctx, each, n.per_tensor);
  else
    check_optional(op, ctx, each, n.per_tensor);
  if (n.per_tensor.defined()) {
    check_norms(each, n.per_tensor);
    check_vector(op, each, n.per_tensor, count);
  }
  if (n.blends && n.in.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_norms(ctx, n); }, [&] { cuda::multi_tensor_norms(ctx, n); });
}

}  // namespace

void multi_tensor_unscale_l2norm(const Context& ctx, View flag, View norm, View per_tensor,
                                 std::span<const ConstView> in, ConstView inv_scale) {
  constexpr const char* op = "multi_tensor_unscale_l2norm";
  check_given(op, ctx, "inv_scale", inv_scale);
  check_scalar(op, ctx, "inv_scale", inv_scale);
  run_norms(op, ctx,
            {.flag = flag, .norm = norm, .per_tensor = per_tensor, .in = in, .out = {}, .inv_scale = inv_scale});
}

void multi_tensor_l2norm_mp(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> in) {
  run_norms(
      "multi_tensor_l2norm_mp", ctx,
      {.flag = flag, .norm = norm, .per_tensor = per_tensor, .in = in, .out = {}, .inv_scale = {}, .skips = true});
}

void multi_tensor_l2norm_scale(const Context& ctx, View flag, View norm, View per_tensor, std::span<const View> out,
                               std::span<const ConstView> in, double scale) {
  constexpr const char* op = "multi_tensor_l2norm_scale";
  check_whole_list(op, ctx, "in", in);
  check_whole_list(op, ctx, "out", out);
  check_matches(op, "out", out, "in", in);
  check_precision(op, "out", out, in);
  run_norms(
      op, ctx,
      {.flag = flag, .norm = norm, .per_tensor = per_tensor, .in = in, .out = out, .scale = scale, .inv_scale = {}});
}

void multi_tensor_max_norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> in) {
  run_norms("multi_tensor_max_norm", ctx,
            {.flag = flag,
             .norm = norm,
             .per_tensor = per_tensor,
             .in = in,
             .out = {},
             .inv_scale = {},
             .type = NormType::inf});
}

void multi_tensor_norm_out(const Context& ctx, View flag, View norms, std::span<const ConstView> in, double alpha,
                           double beta, NormType type) {
  run_norms("multi_tensor_norm_out", ctx,
            {.flag = flag,
             .norm = {},
             .per_tensor = norms,
             .in = in,
             .out = {},
             .inv_scale = {},
             .type = type,
             .blends = true,
             .alpha = alpha,
             .beta = beta});
}

void multi_tensor_maybe_cast(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in) {
  constexpr const char* op = "multi_tensor_maybe_cast";
  check_flag(op, ctx, flag);
  const auto check = [&]<class V>(const char* name, std::span<const V> list) {
    if (list.empty() || !list[0].defined() || list[0].dtype != DType::u8) return check_whole_list(op, ctx, name, list);
    check_list(op, ctx, name, list, true);
    check_one_dtype(op, name, list);
  };
  check("in", in);
  check("out", out);
  check_matches(op, "out", out, "in", in);
  if (in.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_maybe_cast(ctx, flag, out, in); },
      [&] { cuda::multi_tensor_maybe_cast(ctx, flag, out, in); });
}

void update_scale_hysteresis(const Context& ctx, View scale, View growth, View hysteresis, ConstView found_inf,
                             double growth_factor, double backoff_factor, std::int64_t interval,
                             std::int64_t full_hysteresis, double least, double most) {
  constexpr const char* op = "update_scale_hysteresis";
  const auto check_one = [&](const char* name, const ConstView& v, DType dtype) {
    check_given(op, ctx, name, v);
    check_scalar(op, ctx, name, v, dtype);
  };
  check_one("scale", scale, DType::f32);
  check_one("growth", growth, DType::i32);
  check_one("hysteresis", hysteresis, DType::i32);
  check_one("found_inf", found_inf, DType::f32);
  if (interval < 1) fail(Kind::argument, concat(op, ": interval is ", interval, ", wanted at least 1"));
  if (full_hysteresis < 1)
    fail(Kind::argument, concat(op, ": full_hysteresis is ", full_hysteresis, ", wanted at least 1"));
  if (!(least <= most)) fail(Kind::argument, concat(op, ": least ", least, " is above most ", most));
  const ScaleRule rule{growth_factor, backoff_factor, interval, full_hysteresis, least, most};
  dispatch(
      op, ctx, [&] { cpu::update_scale_hysteresis(ctx, scale, growth, hysteresis, found_inf, rule); },
      [&] { cuda::update_scale_hysteresis(ctx, scale, growth, hysteresis, found_inf, rule); });
}

void multi_tensor_clip(const Context& ctx, std::span<const View> x, ConstView norm, double max_norm) {
  constexpr const char* op = "multi_tensor_clip";
  check_whole_list(op, ctx, "x", x);
  check_given(op, ctx, "norm", norm);
  check_wide_floating(op, "norm", norm);
  if (norm.numel() != 1) fail(Kind::argument, concat(op, ": norm has sizes ", norm.sizes, ", wanted one element"));
  if (!(max_norm >= 0)) fail(Kind::argument, concat(op, ": max_norm is ", max_norm, ", wanted at least 0"));
  if (x.empty()) return;
  dispatch(
      op, ctx, [&] { cpu::multi_tensor_clip(ctx, x, norm, max_norm); },
      [&] { cuda::multi_tensor_clip(ctx, x, norm, max_norm); });
}

}  // namespace apex::kernels
