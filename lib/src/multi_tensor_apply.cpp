// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/multi_tensor_apply.hpp"

#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::multi_tensor {

namespace {

void check_lists(const char* op, const TensorLists& lists, std::size_t least, std::size_t most) {
  if (lists.size() < least || lists.size() > most)
    fail(Kind::argument,
         concat(op, ": ", lists.size(), " lists; ", least, most > least ? " or more" : "", " are needed"));
  for (std::size_t l = 0; l < lists.size(); ++l) {
    if (lists[l].size() != lists[0].size())
      fail(Kind::argument,
           concat(op, ": list ", l, " has ", lists[l].size(), " tensors, list 0 has ", lists[0].size()));
    for (std::size_t i = 0; i < lists[l].size(); ++i)
      if (!lists[l][i].defined()) fail(Kind::argument, concat(op, ": tensor ", i, " of list ", l, " is undefined"));
  }
}

std::vector<View> views_of(const std::vector<Tensor>& list) {
  std::vector<View> views;
  for (const auto& t : list) views.push_back(t.view());
  return views;
}
std::vector<ConstView> inputs_of(const std::vector<Tensor>& list) {
  std::vector<ConstView> views;
  for (const auto& t : list) views.emplace_back(t.view());
  return views;
}
void raise_versions(const std::vector<Tensor>& list) {
  for (const auto& t : list) t.raise_version();
}

}  // namespace

void scale(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double factor) {
  check_lists("multi_tensor scale", lists, 2, 2);
  if (lists[0].empty()) return;
  kernels::multi_tensor_scale(lists[0][0].context(), flag.view(), views_of(lists[1]), inputs_of(lists[0]), factor,
                              chunk_size);
  raise_versions(lists[1]);
}

void axpby(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double a, double b, int check) {
  check_lists("multi_tensor axpby", lists, 3, 3);
  if (check < -1 || check > 1) fail(Kind::argument, concat("multi_tensor axpby: check ", check, " is not -1, 0 or 1"));
  if (lists[0].empty()) return;
  kernels::multi_tensor_axpby(lists[0][0].context(), flag.view(), views_of(lists[2]), inputs_of(lists[0]),
                              inputs_of(lists[1]), a, b, static_cast<kernels::CheckArgs>(check), chunk_size);
  raise_versions(lists[2]);
}

std::pair<Tensor, Tensor> l2norm(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                 bool per_tensor) {
  check_lists("multi_tensor l2norm", lists, 1, 1);
  const auto count = static_cast<std::int64_t>(lists[0].size());
  const DType dtype = count > 0 ? accum_dtype(lists[0][0].dtype()) : DType::f32;
  const Device device = count > 0 ? lists[0][0].device() : flag.device();
  Tensor norm = zeros({1}, dtype, device), each = per_tensor ? zeros({count}, dtype, device) : Tensor();
  if (count > 0)
    kernels::multi_tensor_l2norm(norm.context(), flag.view(), norm.view(), each.view(), inputs_of(lists[0]),
                                 chunk_size);
  return {norm, each};
}

void sgd(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double weight_decay, double momentum,
         double dampening, double lr, bool nesterov, bool first_run, bool wd_after_momentum, double scale) {
  check_lists("multi_tensor sgd", lists, 3, 4);
  if (lists[0].empty()) return;
  kernels::SgdOptions options;
  options.lr = lr;
  options.momentum = momentum;
  options.dampening = dampening;
  options.weight_decay = weight_decay;
  options.nesterov = nesterov;
  options.wd_after_momentum = wd_after_momentum;
  options.scale = scale;
  options.chunk_size = chunk_size;
  const bool with_momentum = momentum != 0.0;
  const std::vector<std::uint8_t> first(with_momentum ? lists[0].size() : 0, first_run ? 1 : 0);
  kernels::multi_tensor_sgd(
      lists[0][0].context(), flag.view(), views_of(lists[1]), with_momentum ? views_of(lists[2]) : std::vector<View>{},
      lists.size() == 4 ? views_of(lists[3]) : std::vector<View>{}, inputs_of(lists[0]), first, options);
  for (std::size_t l = 1; l < lists.size(); ++l) raise_versions(lists[l]);
}

namespace {

/// Norms of lists[0] by `run(norm, per_tensor)`.
template <class Run>
std::pair<Tensor, Tensor> norms_of(const Tensor& flag, const std::vector<Tensor>& list, bool per_tensor, Run&& run) {
  const auto count = static_cast<std::int64_t>(list.size());
  const DType dtype = count > 0 ? accum_dtype(list[0].dtype()) : DType::f32;
  const Device device = count > 0 ? list[0].device() : flag.device();
  Tensor norm = zeros({1}, dtype, device), each = per_tensor ? zeros({count}, dtype, device) : Tensor();
  if (count > 0) run(norm, each);
  return {norm, each};
}

int checked_mode(const char* op, const char* what, int mode, int other) {
  if (mode != 0 && mode != other) fail(Kind::argument, concat(op, ": ", what, ' ', mode, " is not 0 or ", other));
  return mode;
}

/// A learning rate on the device as the kernels read it.
Tensor in_f64(const char* op, const Tensor& lr) {
  if (!lr.defined()) fail(Kind::argument, concat(op, ": lr is not given"));
  if (lr.dtype() == DType::f64) return lr;
  const Tensor wide = empty(lr.sizes(), DType::f64, lr.device());
  kernels::copy(wide.context(), wide.view(), lr.view());
  return wide;
}

/// Steps `p` with or without copies; what stays on the host is in `options`.
void run_adam(const TensorLists& lists, const std::vector<Tensor>& p, const std::vector<Tensor>& copies,
              const std::vector<View>& steps, const kernels::AdamOptions& options) {
  kernels::multi_tensor_adam(p[0].context(), views_of(p), views_of(lists[2]), views_of(lists[3]), views_of(copies),
                             inputs_of(lists[0]), steps, options);
  for (std::size_t l = 1; l < lists.size(); ++l) raise_versions(lists[l]);
}

void run_capturable(const char* op, const Tensor& flag, const TensorLists& lists, const Tensor& lr, double beta1,
                    double beta2, double eps, const Tensor& step, int mode, bool bias_correction, double weight_decay,
                    const Tensor& inv_scale, std::size_t depth) {
  check_lists(op, lists, depth, depth);
  checked_mode(op, "mode", mode, 1);
  if (lists[0].empty()) return;
  if (!step.defined()) fail(Kind::argument, concat(op, ": step is not given"));
  const Tensor rate = in_f64(op, lr);
  kernels::AdamOptions options{.beta1 = beta1,
                               .beta2 = beta2,
                               .eps = eps,
                               .weight_decay = weight_decay,
                               .mode = static_cast<kernels::AdamMode>(mode),
                               .bias_correction = bias_correction};
  options.in.flag = flag.view();
  options.in.inv_scale = inv_scale.view();
  options.in.lr_on_device = rate.view();
  const bool masters = depth == 5;
  run_adam(lists, lists[masters ? 4 : 1], masters ? lists[1] : std::vector<Tensor>{}, {step.view()}, options);
  step.raise_version();
}

}  // namespace

std::pair<Tensor, Tensor> l2norm_mp(std::int64_t, const Tensor& flag, const TensorLists& lists, bool per_tensor) {
  check_lists("multi_tensor l2norm_mp", lists, 1, 1);
  return norms_of(flag, lists[0], per_tensor, [&](const Tensor& norm, const Tensor& each) {
    kernels::multi_tensor_l2norm_mp(norm.context(), flag.view(), norm.view(), each.view(), inputs_of(lists[0]));
  });
}

std::pair<Tensor, Tensor> unscale_l2norm(std::int64_t, const Tensor& flag, const TensorLists& lists,
                                         const Tensor& inv_scale, bool per_tensor) {
  check_lists("multi_tensor unscale_l2norm", lists, 1, 1);
  return norms_of(flag, lists[0], per_tensor, [&](const Tensor& norm, const Tensor& each) {
    kernels::multi_tensor_unscale_l2norm(norm.context(), flag.view(), norm.view(), each.view(), inputs_of(lists[0]),
                                         inv_scale.view());
  });
}

std::pair<Tensor, Tensor> l2norm_scale(std::int64_t, const Tensor& flag, const TensorLists& lists, double scale,
                                       bool per_tensor) {
  check_lists("multi_tensor l2norm_scale", lists, 2, 2);
  auto norms = norms_of(flag, lists[0], per_tensor, [&](const Tensor& norm, const Tensor& each) {
    kernels::multi_tensor_l2norm_scale(norm.context(), flag.view(), norm.view(), each.view(), views_of(lists[1]),
                                       inputs_of(lists[0]), scale);
  });
  raise_versions(lists[1]);
  return norms;
}

void adam(std::int64_t, const Tensor& flag, const TensorLists& lists, double lr, double beta1, double beta2, double eps,
          std::int64_t step, int mode, bool bias_correction, double weight_decay) {
  constexpr const char* op = "multi_tensor adam";
  check_lists(op, lists, 4, 4);
  checked_mode(op, "mode", mode, 1);
  if (lists[0].empty()) return;
  kernels::AdamOptions options{.lr = lr,
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .eps = eps,
                               .weight_decay = weight_decay,
                               .mode = static_cast<kernels::AdamMode>(mode),
                               .bias_correction = bias_correction,
                               .step = step};
  options.in.flag = flag.view();
  run_adam(lists, lists[1], {}, {}, options);
}

void adam_capturable(std::int64_t, const Tensor& flag, const TensorLists& lists, const Tensor& lr, double beta1,
                     double beta2, double eps, const Tensor& step, int mode, bool bias_correction, double weight_decay,
                     const Tensor& inv_scale) {
  run_capturable("multi_tensor adam_capturable", flag, lists, lr, beta1, beta2, eps, step, mode, bias_correction,
                 weight_decay, inv_scale, 4);
}

void adam_capturable_master(std::int64_t, const Tensor& flag, const TensorLists& lists, const Tensor& lr, double beta1,
                            double beta2, double eps, const Tensor& step, int mode, bool bias_correction,
                            double weight_decay, const Tensor& inv_scale) {
  run_capturable("multi_tensor adam_capturable_master", flag, lists, lr, beta1, beta2, eps, step, mode, bias_correction,
                 weight_decay, inv_scale, 5);
}

void adagrad(std::int64_t, const Tensor& flag, const TensorLists& lists, double lr, double eps, int mode,
             double weight_decay) {
  constexpr const char* op = "multi_tensor adagrad";
  check_lists(op, lists, 3, 3);
  checked_mode(op, "mode", mode, 1);
  if (lists[0].empty()) return;
  kernels::AdagradOptions options{.lr = lr, .eps = eps, .weight_decay = weight_decay, .adagrad_w_mode = mode == 1};
  options.in.flag = flag.view();
  kernels::multi_tensor_adagrad(lists[0][0].context(), views_of(lists[1]), views_of(lists[2]), {}, inputs_of(lists[0]),
                                options);
  raise_versions(lists[1]);
  raise_versions(lists[2]);
}

void novograd(std::int64_t, const Tensor& flag, const TensorLists& lists, const Tensor& grad_norms, double lr,
              double beta1, double beta2, double eps, std::int64_t step, bool bias_correction, double weight_decay,
              bool grad_averaging, int moment_mode, int norm_type) {
  constexpr const char* op = "multi_tensor novograd";
  check_lists(op, lists, 3, 3);
  checked_mode(op, "moment_mode", moment_mode, 1);
  checked_mode(op, "norm_type", norm_type, 2);
  if (lists[0].empty()) return;
  const auto count = static_cast<std::int64_t>(lists[0].size());
  if (!grad_norms.defined() || grad_norms.sizes() != Dims{count})
    fail(Kind::argument, concat(op, ": grad_norms of ", count, " elements are needed, one for each tensor"));
  std::vector<View> norms;
  for (std::int64_t i = 0; i < count; ++i) norms.push_back(views::narrow(grad_norms, 0, i, 1).view());
  kernels::NovoGradOptions options{.lr = lr,
                                   .beta1 = beta1,
                                   .beta2 = beta2,
                                   .eps = eps,
                                   .weight_decay = weight_decay,
                                   .norm_type = static_cast<kernels::NormType>(norm_type),
                                   .bias_correction = bias_correction,
                                   .grad_averaging = grad_averaging,
                                   .reg_inside_moment = moment_mode == 0,
                                   .norms_given = true,
                                   .step = step};
  options.in.flag = flag.view();
  kernels::multi_tensor_novograd(lists[0][0].context(), views_of(lists[1]), views_of(lists[2]), norms, {},
                                 inputs_of(lists[0]), {}, options);
  raise_versions(lists[1]);
  raise_versions(lists[2]);
  grad_norms.raise_version();
}

void lamb(std::int64_t, const Tensor& flag, const TensorLists& lists, double lr, double beta1, double beta2, double eps,
          std::int64_t step, bool bias_correction, double weight_decay, bool grad_averaging, int mode,
          const Tensor& global_grad_norm, double max_grad_norm, bool use_nvlamb) {
  constexpr const char* op = "multi_tensor lamb";
  check_lists(op, lists, 4, 4);
  checked_mode(op, "mode", mode, 1);
  if (lists[0].empty()) return;
  kernels::LambOptions options{.lr = lr,
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .eps = eps,
                               .weight_decay = weight_decay,
                               .bias_correction = bias_correction,
                               .adam_w_mode = mode == 1,
                               .grad_averaging = grad_averaging,
                               .use_nvlamb = use_nvlamb,
                               .max_grad_norm = max_grad_norm,
                               .grad_norm = global_grad_norm.view(),
                               .step = step};
  options.in.flag = flag.view();
  kernels::multi_tensor_lamb(lists[0][0].context(), views_of(lists[1]), views_of(lists[2]), views_of(lists[3]), {},
                             inputs_of(lists[0]), {}, options);
  for (std::size_t l = 1; l < lists.size(); ++l) raise_versions(lists[l]);
}

void lamb_mp(std::int64_t, const Tensor& flag, const TensorLists& lists, const Tensor& lr, double beta1, double beta2,
             double eps, const Tensor& step, bool bias_correction, double weight_decay, bool grad_averaging, int mode,
             const Tensor& global_grad_norm, double max_grad_norm, bool use_nvlamb, const Tensor& found_inf,
             const Tensor& inv_scale) {
  constexpr const char* op = "multi_tensor lamb_mp";
  check_lists(op, lists, 4, 5);
  checked_mode(op, "mode", mode, 1);
  if (lists[0].empty()) return;
  if (!step.defined()) fail(Kind::argument, concat(op, ": step is not given"));
  const Tensor rate = in_f64(op, lr);
  Tensor norm = global_grad_norm;
  if (norm.defined() && inv_scale.defined()) {
    norm = empty_like(global_grad_norm);
    kernels::copy(norm.context(), norm.view(), inv_scale.view());
    kernels::binary(norm.context(), norm.view(), norm.view(), global_grad_norm.view(), kernels::BinaryOp::mul);
  }
  kernels::LambOptions options{.beta1 = beta1,
                               .beta2 = beta2,
                               .eps = eps,
                               .weight_decay = weight_decay,
                               .bias_correction = bias_correction,
                               .adam_w_mode = mode == 1,
                               .grad_averaging = grad_averaging,
                               .use_nvlamb = use_nvlamb,
                               .max_grad_norm = max_grad_norm,
                               .grad_norm = norm.view()};
  options.in.flag = flag.view();
  options.in.found_inf = found_inf.view();
  options.in.inv_scale = inv_scale.view();
  options.in.lr_on_device = rate.view();
  kernels::multi_tensor_lamb(lists[0][0].context(), views_of(lists[1]), views_of(lists[2]), views_of(lists[3]),
                             lists.size() == 5 ? views_of(lists[4]) : std::vector<View>{}, inputs_of(lists[0]),
                             std::vector<View>{step.view()}, options);
  for (std::size_t l = 1; l < lists.size(); ++l) raise_versions(lists[l]);
  step.raise_version();
}

void lamb_stage1(std::int64_t, const Tensor&, const TensorLists& lists, const std::vector<double>& per_tensor_decay,
                 std::int64_t step, double beta1, double beta2, double eps, const Tensor& global_grad_norm,
                 double max_grad_norm) {
  check_lists("multi_tensor lamb_stage1", lists, 5, 5);
  if (lists[0].empty()) return;
  kernels::multi_tensor_lamb_stage1(lists[0][0].context(), inputs_of(lists[1]), views_of(lists[2]), views_of(lists[3]),
                                    views_of(lists[4]), inputs_of(lists[0]), per_tensor_decay, global_grad_norm.view(),
                                    max_grad_norm, step, beta1, beta2, eps);
  for (std::size_t l = 2; l < lists.size(); ++l) raise_versions(lists[l]);
}

void lamb_stage2(std::int64_t, const Tensor&, const TensorLists& lists, const Tensor& per_tensor_param_norm,
                 const Tensor& per_tensor_update_norm, double lr, double weight_decay, bool use_nvlamb) {
  check_lists("multi_tensor lamb_stage2", lists, 2, 2);
  if (lists[0].empty()) return;
  kernels::multi_tensor_lamb_stage2(lists[0][0].context(), views_of(lists[0]), inputs_of(lists[1]),
                                    per_tensor_param_norm.view(), per_tensor_update_norm.view(), lr, weight_decay,
                                    use_nvlamb);
  raise_versions(lists[0]);
}

Tensor update_scale_hysteresis(const Tensor& scale, const Tensor& growth_tracker, const Tensor& hysteresis_tracker,
                               const Tensor& found_inf, double growth_factor, double backoff_factor,
                               std::int64_t growth_interval, std::int64_t hysteresis) {
  constexpr const char* op = "update_scale_hysteresis";
  if (!scale.defined()) fail(Kind::argument, concat(op, ": scale is not given"));
  kernels::update_scale_hysteresis(scale.context(), scale.view(), growth_tracker.view(), hysteresis_tracker.view(),
                                   found_inf.view(), growth_factor, backoff_factor, growth_interval, hysteresis);
  for (const Tensor* t : {&scale, &growth_tracker, &hysteresis_tracker}) t->raise_version();
  return scale;
}

}  // namespace apex::multi_tensor
