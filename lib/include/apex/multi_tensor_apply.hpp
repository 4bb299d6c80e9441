// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex {

/// Ops over lists of tensors, in the argument order of the applier below: chunk size (elements one task takes, > 0), a
/// flag (i32, one element, on the tensors' device, cleared by the caller), the lists, then the op's own arguments.
/// Tensors at one index of the lists belong together; lists of no tensors do nothing. Errors name op, list and index.
/// See apex/kernels/multi_tensor.hpp and multi_tensor_optimizers.hpp for formulas and flag rules. What they write
/// raises the tensors' version. Optimizer ops do nothing when the flag is set. Only the elementary ones use the chunk
/// size: the others give the same result for any.
namespace multi_tensor {

using TensorLists = std::vector<std::vector<Tensor>>;

/// lists {in, out}: out = in * scale; the flag becomes 1 at a non-finite input or result.
void scale(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double factor);

/// lists {x, y, out}: out = a x + b y. check: -1 looks at both inputs (and the result), 0 at x, 1 at y.
void axpby(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double a, double b, int check);

/// lists {x}: {norm [1], norms of the single tensors [N] or undefined}, f32 (f64 for f64).
std::pair<Tensor, Tensor> l2norm(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                 bool per_tensor);

/// lists {gradient, parameter, momentum buffer [, 16-bit copy]}. first_run: buffers start from the gradient.
void sgd(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double weight_decay, double momentum,
         double dampening, double lr, bool nesterov, bool first_run, bool wd_after_momentum, double scale);

/// As l2norm, but when the flag is set already, nothing is read and the norms are 0.
std::pair<Tensor, Tensor> l2norm_mp(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                    bool per_tensor);
/// lists {x}: norms of x * inv_scale (f32, one element); x stays.
std::pair<Tensor, Tensor> unscale_l2norm(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                         const Tensor& inv_scale, bool per_tensor);
/// lists {in, out}: out = in * scale and the norms of `in`.
std::pair<Tensor, Tensor> l2norm_scale(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                       double scale, bool per_tensor);

/// lists {gradient, parameter, exp_avg, exp_avg_sq}. mode: 0 is L2, 1 decoupled weight decay. step: 1 for the first.
void adam(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double lr, double beta1, double beta2,
          double eps, std::int64_t step, int mode, bool bias_correction, double weight_decay);
/// adam with lr (one floating element), step (i32, the number of updates so far; raised by one unless skipped) and
/// inv_scale (f32, or undefined) on the device. Gradients are not changed.
void adam_capturable(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, const Tensor& lr,
                     double beta1, double beta2, double eps, const Tensor& step, int mode, bool bias_correction,
                     double weight_decay, const Tensor& inv_scale);
/// lists {gradient, parameter, exp_avg, exp_avg_sq, f32 master}: the masters are updated, parameters are their copies.
void adam_capturable_master(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, const Tensor& lr,
                            double beta1, double beta2, double eps, const Tensor& step, int mode, bool bias_correction,
                            double weight_decay, const Tensor& inv_scale);

/// lists {gradient, parameter, sum}. mode: 0 is L2, 1 decoupled weight decay.
void adagrad(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double lr, double eps, int mode,
             double weight_decay);

/// lists {gradient, parameter, exp_avg}. grad_norms [N], f32 (f64 for f64): kept norms, always blended, so that the
/// caller chooses what they start from. moment_mode: 0 puts weight decay into the moment. norm_type: 0 or 2.
void novograd(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, const Tensor& grad_norms,
              double lr, double beta1, double beta2, double eps, std::int64_t step, bool bias_correction,
              double weight_decay, bool grad_averaging, int moment_mode, int norm_type);

/// lists {gradient, parameter, exp_avg, exp_avg_sq}. mode: 0 is L2, 1 decoupled weight decay.
void lamb(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double lr, double beta1, double beta2,
          double eps, std::int64_t step, bool bias_correction, double weight_decay, bool grad_averaging, int mode,
          const Tensor& global_grad_norm, double max_grad_norm, bool use_nvlamb);
/// lists {gradient, f32 master, exp_avg, exp_avg_sq [, 16-bit copy]}; lr and step as in adam_capturable.
/// @param global_grad_norm  of the gradients as they are, before inv_scale
/// @param found_inf         f32, not 0 skips; may be undefined, like inv_scale
void lamb_mp(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, const Tensor& lr, double beta1,
             double beta2, double eps, const Tensor& step, bool bias_correction, double weight_decay,
             bool grad_averaging, int mode, const Tensor& global_grad_norm, double max_grad_norm, bool use_nvlamb,
             const Tensor& found_inf, const Tensor& inv_scale);
/// lists {gradient, parameter, exp_avg, exp_avg_sq, update}: forms the updates; step is the number of earlier ones. The
/// flag is not looked at, in neither stage.
void lamb_stage1(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                 const std::vector<double>& per_tensor_decay, std::int64_t step, double beta1, double beta2, double eps,
                 const Tensor& global_grad_norm, double max_grad_norm);
/// lists {parameter, update}, with norms [N] of both as l2norm gives them.
void lamb_stage2(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                 const Tensor& per_tensor_param_norm, const Tensor& per_tensor_update_norm, double lr,
                 double weight_decay, bool use_nvlamb);

/// Adapts scale (f32) and its trackers (i32), one element each, where they are. Gives scale back.
Tensor update_scale_hysteresis(const Tensor& scale, const Tensor& growth_tracker, const Tensor& hysteresis_tracker,
                               const Tensor& found_inf, double growth_factor, double backoff_factor,
                               std::int64_t growth_interval, std::int64_t hysteresis);

}  // namespace multi_tensor

namespace multi_tensor_apply {

/// applier(op, flag, lists, args...) calls op(chunk_size, flag, lists, args...).
class MultiTensorApply {
 public:
  static constexpr bool available = true;

  /// @throws Kind::argument for chunk_size < 1
  explicit MultiTensorApply(std::int64_t chunk_size) : chunk_size_(chunk_size) {
    if (chunk_size < 1) fail(Kind::argument, concat("MultiTensorApply: chunk size ", chunk_size, " must be positive"));
  }
  std::int64_t chunk_size() const { return chunk_size_; }

  template <class Op, class... Args>
  decltype(auto) operator()(Op&& op, const Tensor& flag, const multi_tensor::TensorLists& lists, Args&&... args) const {
    return std::forward<Op>(op)(chunk_size_, flag, lists, std::forward<Args>(args)...);
  }

 private:
  std::int64_t chunk_size_;
};

inline const MultiTensorApply multi_tensor_applier{2048 * 32};

}  // namespace multi_tensor_apply
}  // namespace apex
