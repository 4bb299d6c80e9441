// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/nn/functional.hpp"

/// Losses with their options, called as loss(x, target). They hold no parameters and are no modules; weights stay on
/// the device they were given on. Formulas: apex/kernels/loss.hpp and cross_entropy.hpp.
namespace apex::nn {

using functional::Reduction;

struct MSELoss {
  Reduction reduction = Reduction::mean;
  Tensor operator()(const Tensor& x, const Tensor& target) const { return functional::mse_loss(x, target, reduction); }
};

struct L1Loss {
  Reduction reduction = Reduction::mean;
  Tensor operator()(const Tensor& x, const Tensor& target) const { return functional::l1_loss(x, target, reduction); }
};

struct SmoothL1Loss {
  double beta = 1.0;
  Reduction reduction = Reduction::mean;
  Tensor operator()(const Tensor& x, const Tensor& target) const {
    return functional::smooth_l1_loss(x, target, beta, reduction);
  }
};

struct HuberLoss {
  double delta = 1.0;
  Reduction reduction = Reduction::mean;
  Tensor operator()(const Tensor& x, const Tensor& target) const {
    return functional::huber_loss(x, target, delta, reduction);
  }
};

struct BCELoss {
  functional::BceOptions options = {};
  Tensor operator()(const Tensor& x, const Tensor& target) const {
    return functional::binary_cross_entropy(x, target, options);
  }
};

struct BCEWithLogitsLoss {
  functional::BceWithLogitsOptions options = {};
  Tensor operator()(const Tensor& x, const Tensor& target) const {
    return functional::binary_cross_entropy_with_logits(x, target, options);
  }
};

struct NLLLoss {
  functional::NllLossOptions options = {};
  Tensor operator()(const Tensor& x, const Tensor& labels) const { return functional::nll_loss(x, labels, options); }
};

struct KLDivLoss {
  functional::KlDivOptions options = {};
  Tensor operator()(const Tensor& x, const Tensor& target) const { return functional::kl_div(x, target, options); }
};

struct CrossEntropyLoss {
  functional::CrossEntropyOptions options = {};
  Tensor operator()(const Tensor& logits, const Tensor& labels) const {
    return functional::cross_entropy(logits, labels, options);
  }
};

}  // namespace apex::nn
