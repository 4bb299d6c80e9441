// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/cross_entropy.hpp"

// Losses that compare an input x with a target. One floating dtype per call; losses have A = f64 for f64, else f32.
// Everything is computed in A and rounded once; sums are formed in f64 in an order that depends on sizes, strides and
// alignment only.

namespace apex::kernels {

enum class LossKind { mse, l1, smooth_l1, huber, bce, bce_with_logits, kl_div };
const char* name_of(LossKind kind) noexcept;

struct PointwiseLoss {
  LossKind kind = LossKind::mse;
  Reduction reduction = Reduction::mean;
  double delta = 1.0;       ///< smooth_l1's beta (>= 0), huber's delta (> 0)
  bool log_target = false;  ///< kl_div: the target is given as logarithms
};

/// A loss for each pair of elements, d = x - t:
///
///   mse              d^2
///   l1               |d|                                                  derivative 0 at 0
///   smooth_l1        |d| < beta ? d^2 / (2 beta) : |d| - beta / 2         beta = 0: l1
///   huber            |d| <= delta ? d^2 / 2 : delta (|d| - delta / 2)
///   bce              -w (t ln x + (1 - t) ln(1 - x)), logarithms cut off at -100; NaN for x outside of [0, 1].
///                    Derivative w (x - t) / max(x (1 - x), 1e-12)
///   bce_with_logits  w ((1 - t) ln(1 + e^x) + p t ln(1 + e^-x)): bce of sigmoid(x) without its overflow, p the weight
///                    of positives. Infinite x give 0 where the target's share of them is 0
///   kl_div           t (ln t - x), 0 for t = 0; log_target: e^t (t - x), 0 where e^t is 0, for t = -infinity too.
///                    x are logarithms of probabilities; a target above 0 (e^t > 0) at x = -infinity costs infinity.
///                    The derivative by t is 0 where the target is
///
/// then their sum, their mean (over all elements; of none: NaN), or the losses themselves.
/// @param loss        one element (rank 0 or [1]) for mean and sum, x's sizes for none; A
/// @param x, target   equal sizes, any strides
/// @param weight      w: broadcasts to x, x's dtype; undefined: 1. bce and bce_with_logits only
/// @param pos_weight  p: the same. bce_with_logits only
/// @throws Kind::argument for sizes, dtypes, devices or options that do not fit, or a weight where there is none
void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options = {});

/// dx and dtarget: the derivatives times dloss (for mean, divided by the number of elements). Either may be undefined;
/// each has x's sizes and dtype and may be x or target itself, unless both are wanted.
void pointwise_loss_backward(const Context& ctx, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options = {});

struct NllOptions {
  std::int64_t ignore_index = -100;  ///< places with this label give loss 0 and gradient 0 and do not count
  Reduction reduction = Reduction::mean;
};

/// The negative logarithm of the likelihood: loss[n, ...] = -w[label] x[n, label, ...], label = labels[n, ...].
/// mean divides the sum by that of the weights w[label] of all places that count (none: NaN).
/// @param loss          one element (rank 0 or [1]) for mean and sum, labels' sizes for none; A
/// @param total_weight  one element of A, gets the sum of weights; what backward of a mean needs; may be undefined
/// @param x             [N, C, ...], any strides: logarithms of probabilities, as log_softmax gives
/// @param labels        [N, ...] i64
/// @param weight        [C] of x's dtype, contiguous; undefined: 1
/// A label that is neither in [0, C) nor ignore_index: on the CPU Kind::argument naming place and value; on CUDA, where
/// throwing would mean waiting for the device, the loss there (and with it mean and sum) is NaN and the gradient 0,
/// unless data checks are on (kernels/data_checks.hpp): then the same error.
void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options = {});

/// dx[n, c, ...] = c == label ? -w[c] dloss : 0, for mean divided by total_weight (then not undefined). Every element
/// of dx is written.
void nll_loss_backward(const Context& ctx, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options = {});

}  // namespace apex::kernels
