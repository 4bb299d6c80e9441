// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"
#include "apex/kernels/multi_tensor.hpp"

// One step of an optimizer over lists of tensors (rules of the lists: multi_tensor.hpp).
//
// Common to all. params: f64, f32, f16 or bf16, updated in place. State (moments, sums): f32, f64 for f64 params;
// Adam's moments may also be bf16 or f16. copies: written after the update from the unrounded value, of any floating
// dtype (the 16-bit weights of f32 masters, or the buffer that is gathered from all ranks); an empty list writes none.
// grads: any floating dtype, f64 only with f64; never changed. Arithmetic in f32 (f64 for f64), one rounding at each
// store; hyper-parameters are narrowed once, complements are formed from the narrowed value: c1 = 1 - f32(beta1).
//
// Step counts. Bias correction needs t, the number of this update of a tensor, 1 for its first. Either all tensors
// share options.step, known on the host, or `steps` holds for each tensor, or once for all, one i32 element on
// ctx.device with the number of updates it has had (no two views of one element): the op raises it by one, unless it
// skips, and corrects by the raised number, so nothing waits for the device and a captured step can be replayed. Both
// ways give the same bits. bc = 1 - f64(f32(beta))^t, computed in f64 and narrowed (beta itself for f64).
//
// Skips. An op whose flag, StepInputs::found_inf or (LAMB) gradient norm says so leaves everything bit-identical,
// steps too.

namespace apex::kernels {

/// What a step reads on the device when it runs, so that a captured one can be replayed. Each may be undefined.
struct StepInputs {
  ConstView flag{};          ///< i32, one element: not 0 skips
  ConstView found_inf{};     ///< f32, one element: not 0 skips
  ConstView inv_scale{};     ///< f32, one element: multiplies `grad_scale`
  ConstView lr_on_device{};  ///< f64, one element: replaces `lr`
  double grad_scale = 1.0;   ///< gradients are multiplied by it as they are read
};

/// Where Adam's eps stands, and what weight decay is added to.
enum class AdamMode {
  l2 = 0,       ///< g += weight_decay * p first; u = (m / bc1) / (sqrt(v / bc2) + eps)
  decoupled,    ///< AdamW: the same u, then u += weight_decay * p (Loshchilov and Hutter 2019)
  torch_order,  ///< l2 with u = (m / bc1) / (sqrt(v) / sqrt(bc2) + eps), the order of operations of PyTorch's Adam
  legacy,       ///< u = m / (sqrt(v) + eps) + weight_decay * p, step size lr * sqrt(bc2) / bc1 (Apex's deprecated Adam)
  legacy_eps_inside,  ///< as legacy with sqrt(v + eps)
};

struct AdamOptions {
  StepInputs in{};
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  AdamMode mode = AdamMode::decoupled;
  bool bias_correction = true;  ///< false: bc1 = bc2 = 1
  bool maximize = false;        ///< gradients are negated
  std::int64_t step = 0;        ///< of all tensors where `steps` is empty; then >= 1
};

/// Adam (Kingma and Ba 2015, arXiv:1412.6980). Per element, with g = grad * grad_scale * inv_scale:
///
///   m = b1 m + c1 g;  v = b2 v + c2 g^2;  u by `mode`;  p -= lr * u;  copy = p
///
/// @throws Kind::argument for lists, dtypes or sizes that do not fit; neither steps nor options.step; both
void multi_tensor_adam(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const AdamOptions& options);

/// Adam on f32 weights that are kept in two halves, the upper in a bf16 tensor, the lower 16 bits as bytes. X = the f32
/// bits; rem = int16(X & 0xffff), hi = X >> 16, plus one when rem < 0: hi is X
/// rounded to nearest with ties away from zero. A NaN is stored as a quiet bf16 NaN. The arithmetic is that of f32
/// params.
/// @param params      bf16, the upper halves, updated
/// @param remainders  u8, twice params' element count, row-major, little-endian int16 each; updated
/// @param copies      bf16, receive the upper halves too; may be empty
void multi_tensor_adam_remainders(const Context& ctx, std::span<const View> params, std::span<const View> remainders,
                                  std::span<const View> exp_avg, std::span<const View> exp_avg_sq,
                                  std::span<const View> copies, std::span<const ConstView> grads,
                                  std::span<const View> steps, const AdamOptions& options);

/// Adam in a mode that is not legacy, fused with the average of weights of FusedAdamSWA (one pass over memory):
///   swa = n_averaged == 0 ? p : swa + (1 - decay) (p - swa), p after its update
/// @param swa         params' dtype, updated
/// @param n_averaged  how many steps the average has seen
void multi_tensor_adam_swa(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const View> swa,
                           std::span<const ConstView> grads, std::span<const View> steps, const AdamOptions& options,
                           double decay, std::int64_t n_averaged);

struct AdagradOptions {
  StepInputs in{};
  double lr = 1e-2, eps = 1e-10, weight_decay = 0.0;
  bool adagrad_w_mode = false;
};

/// Adagrad (Duchi et al. 2011). g += wd p unless adagrad_w_mode; h += g^2; u = g / (sqrt(h) + eps), plus wd p with
/// adagrad_w_mode; p -= lr u. @param sums h
void multi_tensor_adagrad(const Context& ctx, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options);

/// Which norm of a tensor NovoGrad keeps.
enum class NormType { inf = 0, l2 = 2 };

struct NovoGradOptions {
  StepInputs in{};
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  NormType norm_type = NormType::l2;
  bool bias_correction = true, grad_averaging = true;
  bool reg_inside_moment = false;
  bool init_zero = false;    ///< the kept norm starts at 0 instead of at the first gradient's norm
  bool norms_given = false;  ///< it starts at what `norms` holds, before the first update too
  std::int64_t step = 0;
};

/// NovoGrad (Ginsburg et al. 2019, arXiv:1905.11286). Per tensor n = norm of g; the kept norm s starts at n (at 0 with
/// init_zero) on its first update and is blended: l2: s = sqrt(b2 s^2 + c2 n^2); inf: s = b2 s + c2 n. With
/// d = s / sqrt(1 - b2^t) + eps, b3 = grad_averaging ? c1 : 1:
///   reg_inside_moment: m = b1 m + b3 (g / d + wd p);  p -= lr m / bc1
///   else:              m = b1 m + b3 g;               p -= lr ((m / bc1) / d + wd p)
/// What `norms` holds before the first update does not matter, unless norms_given.
/// @param norms  s, one element for each tensor, f32 (f64 for f64), updated
void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options);

struct LambOptions {
  StepInputs in{};
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01;
  bool bias_correction = true, adam_w_mode = true, grad_averaging = true, use_nvlamb = false;
  double max_grad_norm = 1.0;  ///< <= 0: no clipping
  ConstView grad_norm{};  ///< one element, f32 or f64: norm of all gradients after grad_scale and inv_scale; needed
                          ///< when clipping; not finite: skips
  std::int64_t step = 0;
};

/// LAMB (You et al. 2020, arXiv:1904.00962). g' = g / (gn > max_grad_norm ? gn / max_grad_norm : 1); without
/// adam_w_mode g' += wd p; m = b1 m + b3 g', v = b2 v + c2 g'^2, u = (m / bc1) / (sqrt(v / bc2) + eps), with
/// adam_w_mode u += wd p. Per tensor r = lr ||p|| / ||u|| if (use_nvlamb or wd != 0) and both norms are not 0, else lr;
/// p -= r u. u is never stored: it is formed again from m, v and p.
void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& options);

/// The first half of multi_tensor_lamb: steps and moments, and squares[i] = {||p_i||^2, ||u_i||^2}, f64 [n, 2] on
/// ctx.device. Parts of one tensor that lie on several ranks are added up by the caller before lamb_apply.
void multi_tensor_lamb_moments(const Context& ctx, View squares, std::span<const ConstView> params,
                               std::span<const View> exp_avg, std::span<const View> exp_avg_sq,
                               std::span<const ConstView> grads, std::span<const View> steps,
                               const LambOptions& options);
/// The second half: p -= r u with r from `squares`; `steps` are read, not raised. `grads` may be empty: u is formed
/// from the moments.
void multi_tensor_lamb_apply(const Context& ctx, std::span<const View> params, std::span<const View> copies,
                             std::span<const ConstView> exp_avg, std::span<const ConstView> exp_avg_sq,
                             std::span<const ConstView> grads, std::span<const View> steps, ConstView squares,
                             const LambOptions& options);

/// The two ops that Apex's first LAMB was made of. Stage 1 forms u (any floating dtype, f32 advised) with
/// t = step + 1, beta3 = 1 - beta1 and a weight decay per tensor; stage 2 applies it as multi_tensor_lamb does.
void multi_tensor_lamb_stage1(const Context& ctx, std::span<const ConstView> params, std::span<const View> exp_avg,
                              std::span<const View> exp_avg_sq, std::span<const View> updates,
                              std::span<const ConstView> grads, std::span<const double> weight_decay,
                              ConstView grad_norm, double max_grad_norm, std::int64_t step, double beta1, double beta2,
                              double eps);
/// @param param_norms, update_norms  [n] f32 (f64 for f64), as multi_tensor_l2norm gives them per tensor
void multi_tensor_lamb_stage2(const Context& ctx, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, double weight_decay,
                              bool use_nvlamb);

// ---- norms beside multi_tensor_l2norm ----

/// Norm of in * inv_scale (f32, one element, on ctx.device); `in` unchanged. Detects as multi_tensor_l2norm.
void multi_tensor_unscale_l2norm(const Context& ctx, View flag, View norm, View per_tensor,
                                 std::span<const ConstView> in, ConstView inv_scale);
/// As multi_tensor_l2norm, but when flag is already set the outputs are 0 and nothing is read.
void multi_tensor_l2norm_mp(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> in);
/// out = in * scale and the norm of the unscaled input, in one pass. Detects as multi_tensor_l2norm, and a non-finite
/// result.
void multi_tensor_l2norm_scale(const Context& ctx, View flag, View norm, View per_tensor, std::span<const View> out,
                               std::span<const ConstView> in, double scale);
/// The largest |x| per tensor and of all; a NaN gives NaN; detects non-finite values.
void multi_tensor_max_norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> in);
/// Blends the tensors' norms into `norms` [n]: l2: sqrt(alpha s^2 + beta n^2); inf: alpha s + beta n. Detects as the
/// norm of that type.
void multi_tensor_norm_out(const Context& ctx, View flag, View norms, std::span<const ConstView> in, double alpha,
                           double beta, NormType type);

/// out = in, converted, unless flag is set; detects nothing. Floating and u8, where u8 is e5m2: the upper byte of f16,
/// rounded half away from zero.
void multi_tensor_maybe_cast(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in);

// ---- loss scale ----

/// Adapts a loss scale in one device thread; nothing waits. With found_inf (not 0): hysteresis -= 1; while it is still
/// > 0 growth = 0 and the scale stays. After that scale = f32(scale * backoff), growth = 0. Without found_inf: growth
/// += 1; when it reaches `interval`, scale = f32(scale * growth_factor) if that is finite, growth = 0; and hysteresis
/// returns to `full_hysteresis`. A new scale is kept within [least, most].
/// @param scale f32, growth i32, hysteresis i32, found_inf f32: one element each, on ctx.device
void update_scale_hysteresis(const Context& ctx, View scale, View growth, View hysteresis, ConstView found_inf,
                             double growth_factor, double backoff_factor, std::int64_t interval,
                             std::int64_t full_hysteresis, double least = 0.0, double most = 3.4028234663852886e38);

/// coefficient = min(1, max_norm / (norm + 1e-6)) on the device (f32 or f64, as norm), then x *= coefficient for all
/// tensors: clips without a wait. Skips nothing: a norm of inf gives 0 (and NaN from infinite values), NaN gives NaN.
void multi_tensor_clip(const Context& ctx, std::span<const View> x, ConstView norm, double max_norm);

}  // namespace apex::kernels
