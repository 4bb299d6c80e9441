// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

// Activations and losses written from their formulas, in double and without any kernel.

namespace apex::test::reference {

inline double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double log1p_exp(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

inline double gelu(double x) { return x * normal_cdf(x); }
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
inline double silu(double x) { return x * sigmoid(x); }
inline double leaky_relu(double x, double slope) { return x > 0 ? x : slope * x; }
inline double elu(double x, double alpha) { return x > 0 ? x : alpha * std::expm1(x); }
inline double softplus(double x, double beta, double threshold) {
  return beta * x > threshold ? x : log1p_exp(beta * x) / beta;
}
inline double clamp(double x, double low, double high) { return std::isnan(x) ? x : std::clamp(x, low, high); }
inline double log_sigmoid(double x) { return -log1p_exp(-x); }

/// One pair of a loss.
inline double mse(double x, double t) { return (x - t) * (x - t); }
inline double l1(double x, double t) { return std::fabs(x - t); }
inline double smooth_l1(double x, double t, double beta) {
  const double d = std::fabs(x - t);
  return d < beta ? d * d / (2 * beta) : d - beta / 2;
}
inline double huber(double x, double t, double delta) {
  const double d = std::fabs(x - t);
  return d <= delta ? d * d / 2 : delta * (d - delta / 2);
}
inline double bce(double x, double t, double weight = 1) {
  const auto cut_log = [](double v) { return std::max(std::log(v), -100.0); };
  return std::isnan(x) || x < 0 || x > 1 ? std::nan("") : -weight * (t * cut_log(x) + (1 - t) * cut_log(1 - x));
}
inline double bce_with_logits(double x, double t, double weight = 1, double pos_weight = 1) {
  return weight * ((1 - t) * log1p_exp(x) + pos_weight * t * log1p_exp(-x));
}
inline double kl_div(double x, double t) { return t == 0 ? 0 : t * (std::log(t) - x); }
inline double kl_div_log(double x, double t) { return std::exp(t) * (t - x); }

/// nll of x [N, C, inner] with labels [N, inner].
struct Nll {
  std::vector<double> losses, weights;  ///< 0 where ignored
  double sum = 0, weight_sum = 0;
};
inline Nll nll(const std::vector<double>& x, std::int64_t classes, std::int64_t inner,
               const std::vector<std::int64_t>& labels, const std::vector<double>& weight, std::int64_t ignore) {
  Nll out;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::int64_t n = static_cast<std::int64_t>(i) / inner, d = static_cast<std::int64_t>(i) % inner;
    const bool counts = labels[i] != ignore;
    const double w = !counts ? 0 : weight.empty() ? 1 : weight[static_cast<std::size_t>(labels[i])];
    out.weights.push_back(w);
    out.losses.push_back(counts ? -w * x[static_cast<std::size_t>((n * classes + labels[i]) * inner + d)] : 0);
    out.sum += out.losses.back();
    out.weight_sum += w;
  }
  return out;
}

}  // namespace apex::test::reference
