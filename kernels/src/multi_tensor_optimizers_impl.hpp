// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "optimizer_formulas.hpp"

// What a backend provides for this family; the front has checked the arguments.

namespace apex::kernels {

/// The lists of the three Adam ops; those an op does not have are empty.
struct AdamLists {
  std::span<const View> params, remainders, exp_avg, exp_avg_sq, copies, swa;
  std::span<const ConstView> grads;
  std::span<const View> steps;
  double swa_decay = 0;
  std::int64_t swa_count = 0;
};

/// The moments of LAMB, of Apex's stage 1 too.
struct LambMoments {
  std::span<const ConstView> params;
  std::span<const View> exp_avg, exp_avg_sq;
  std::span<const View> updates;         ///< empty: u is not stored
  std::span<const double> weight_decay;  ///< of each tensor; empty: options.weight_decay
  std::span<const ConstView> grads;
  std::span<const View> steps;
};

/// The op itself, without the moments: p -= r u.
struct LambApply {
  std::span<const View> params, copies;
  std::span<const ConstView> exp_avg, exp_avg_sq;
  std::span<const View> steps;
};

/// Norms of lists in one of their forms.
struct Norms {
  View flag, norm, per_tensor;
  std::span<const ConstView> in;
  std::span<const View> out;  ///< not empty: in * scale
  double scale = 1;
  ConstView inv_scale;  ///< multiplies what is measured
  NormType type = NormType::l2;
  bool skips = false;  ///< outputs are 0 when the flag is set
  bool blends = false;
  double alpha = 0, beta = 0;  ///< per_tensor is blended with the new norms
  std::int64_t chunk_size = kDefaultChunk;
};

struct ScaleRule {
  double growth_factor, backoff_factor;
  std::int64_t interval, full_hysteresis;
  double least, most;

  APEX_FORMULA float within(double value) const {
    const auto narrow = static_cast<float>(value);
    return narrow < least ? static_cast<float>(least) : narrow > most ? static_cast<float>(most) : narrow;
  }
  APEX_FORMULA void update(float& scale, std::int32_t& growth, std::int32_t& hysteresis, float found_inf) const {
    if (found_inf != 0) {
      hysteresis -= 1;
      growth = 0;
      if (hysteresis <= 0) scale = within(static_cast<double>(scale) * backoff_factor);
      return;
    }
    growth += 1;
    hysteresis = static_cast<std::int32_t>(full_hysteresis);
    if (growth < interval) return;
    growth = 0;
    const double grown = static_cast<double>(scale) * growth_factor;
    if (static_cast<float>(grown) <= 3.4028234663852886e38f) scale = within(grown);
  }
};

namespace cpu {
void multi_tensor_adam(const Context& ctx, const AdamLists& lists, const AdamOptions& options);
void multi_tensor_adagrad(const Context& ctx, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options);
void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options);
void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& options);
void multi_tensor_lamb_moments(const Context& ctx, double* squares, const LambMoments& lists,
                               const LambOptions& options);
void multi_tensor_lamb_apply(const Context& ctx, const double* squares, const LambApply& lists,
                             const LambOptions& options);
void multi_tensor_lamb_stage2(const Context& ctx, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, bool adapts);
void multi_tensor_norms(const Context& ctx, const Norms& norms);
void multi_tensor_maybe_cast(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in);
void update_scale_hysteresis(const Context& ctx, View scale, View growth, View hysteresis, ConstView found_inf,
                             const ScaleRule& rule);
void multi_tensor_clip(const Context& ctx, std::span<const View> x, ConstView norm, double max_norm);
}  // namespace cpu

namespace cuda {
void multi_tensor_adam(const Context& ctx, const AdamLists& lists, const AdamOptions& options);
void multi_tensor_adagrad(const Context& ctx, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options);
void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options);
void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& options);
void multi_tensor_lamb_moments(const Context& ctx, double* squares, const LambMoments& lists,
                               const LambOptions& options);
void multi_tensor_lamb_apply(const Context& ctx, const double* squares, const LambApply& lists,
                             const LambOptions& options);
void multi_tensor_lamb_stage2(const Context& ctx, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, bool adapts);
void multi_tensor_norms(const Context& ctx, const Norms& norms);
void multi_tensor_maybe_cast(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in);
void update_scale_hysteresis(const Context& ctx, View scale, View growth, View hysteresis, ConstView found_inf,
                             const ScaleRule& rule);
void multi_tensor_clip(const Context& ctx, std::span<const View> x, ConstView norm, double max_norm);
}  // namespace cuda

}  // namespace apex::kernels
