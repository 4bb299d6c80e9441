// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "lib/op_cases.hpp"
#include "support/references.hpp"

namespace apex::test {

namespace {

using F::Reduction;
using Unary = Tensor (*)(const Tensor&);
using Pair = Tensor (*)(const Tensor&, const Tensor&, Reduction);

OpCase activation(Op op, const char* what, Unary f, double (*reference)(double)) {
  return {.op = op,
          .what = what,
          .operands = {{.low = -3, .high = 3}},
          .shapes = {{{3, 7}}, {{}}, {{2, 3, 3, 5}}, {{33}}, {{4, 0}}},
          .call = one([f](const Inputs& in) { return f(in[0]); }),
          .reference = each(reference)};
}

const char* name_of(Reduction reduction) {
  return reduction == Reduction::none ? "each" : reduction == Reduction::mean ? "mean" : "sum";
}

/// The sum or the mean of values, or they themselves.
Array reduced(Array losses, Reduction reduction, double divisor) {
  if (reduction == Reduction::none) return losses;
  double sum = 0;
  for (const double v : losses.values) sum += v;
  return {{}, {reduction == Reduction::mean ? sum / divisor : sum}};
}

OpCase pair(Op op, Reduction reduction, Pair f, double (*reference)(double, double), Operand x, Operand target) {
  return {.op = op,
          .what = name_of(reduction),
          .operands = {std::move(x), std::move(target)},
          .shapes = {{{3, 7}, {3, 7}}, {{}, {}}, {{2, 3, 3, 5}, {2, 3, 3, 5}}, {{4, 0}, {4, 0}}},
          .call = one([=](const Inputs& in) { return f(in[0], in[1], reduction); }),
          .reference = gives([=](const Arrays& in) {
            Array losses = in[0];
            for (std::size_t i = 0; i < losses.values.size(); ++i)
              losses.values[i] = reference(in[0].values[i], in[1].values[i]);
            return reduced(std::move(losses), reduction, static_cast<double>(in[0].values.size()));
          }),
          .terms = reduction == Reduction::none ? 1 : 90};
}

OpCase likelihood(Reduction reduction, std::int64_t ignore) {
  return {.op = Op::nll_loss,
          .what = name_of(reduction),
          .operands = {{.low = -3, .high = 0}, index_into(0, 1)},
          .shapes = {{{3, 7}, {3}}, {{2, 3, 4, 5}, {2, 4, 5}}, {{5, 33, 3}, {5, 3}}, {{0, 5}, {0}}},
          .call = one([=](const Inputs& in) {
            return F::nll_loss(in[0], in[1], {.ignore_index = ignore, .reduction = reduction});
          }),
          .reference = gives([=](const Arrays& in) {
            std::vector<std::int64_t> labels;
            for (const double v : in[1].values) labels.push_back(static_cast<std::int64_t>(v));
            std::int64_t inner = 1;
            for (int d = 2; d < in[0].sizes.size(); ++d) inner *= in[0].sizes[d];
            const auto all = reference::nll(in[0].values, in[0].sizes[1], inner, labels, {}, ignore);
            return reduced({in[1].sizes, all.losses}, reduction, all.weight_sum);
          }),
          .terms = reduction == Reduction::none ? 1 : 40};
}

}  // namespace

std::vector<OpCase> activation_cases() {
  return {
      activation(Op::erf, "", F::erf, [](double x) { return std::erf(x); }),
      activation(
          Op::gelu, "exact", [](const Tensor& x) { return F::gelu(x); }, reference::gelu),
      activation(
          Op::gelu, "tanh", [](const Tensor& x) { return F::gelu(x, F::GeluForm::tanh); }, reference::gelu_tanh),
      activation(Op::silu, "", F::silu, reference::silu),
      activation(
          Op::leaky_relu, "", [](const Tensor& x) { return F::leaky_relu(x, 0.2); },
          [](double x) { return reference::leaky_relu(x, 0.2); }),
      activation(
          Op::elu, "", [](const Tensor& x) { return F::elu(x, 1.5); }, [](double x) { return reference::elu(x, 1.5); }),
      activation(
          Op::softplus, "", [](const Tensor& x) { return F::softplus(x, 2.0, 4.0); },
          [](double x) { return reference::softplus(x, 2.0, 4.0); }),
      activation(
          Op::clamp, "", [](const Tensor& x) { return F::clamp(x, -1.25, 0.5); },
          [](double x) { return reference::clamp(x, -1.25, 0.5); }),
      activation(
          Op::hardtanh, "", [](const Tensor& x) { return F::hardtanh(x); },
          [](double x) { return reference::clamp(x, -1, 1); }),
      activation(Op::log_sigmoid, "", F::log_sigmoid, reference::log_sigmoid),
  };
}

std::vector<OpCase> pointwise_loss_cases() {
  std::vector<OpCase> out;
  const Operand any{}, unit{.low = 0.1, .high = 0.9}, logarithm{.low = -3, .high = 0}, logit{.low = -4, .high = 4};
  for (const auto r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    out.push_back(pair(Op::mse_loss, r, F::mse_loss, reference::mse, any, any));
    out.push_back(pair(Op::l1_loss, r, F::l1_loss, reference::l1, any, any));
    out.push_back(pair(
        Op::smooth_l1_loss, r,
        [](const Tensor& x, const Tensor& t, Reduction how) { return F::smooth_l1_loss(x, t, 0.5, how); },
        [](double x, double t) { return reference::smooth_l1(x, t, 0.5); }, any, any));
    out.push_back(pair(
        Op::huber_loss, r,
        [](const Tensor& x, const Tensor& t, Reduction how) { return F::huber_loss(x, t, 0.5, how); },
        [](double x, double t) { return reference::huber(x, t, 0.5); }, any, any));
    out.push_back(pair(
        Op::binary_cross_entropy, r,
        [](const Tensor& x, const Tensor& t, Reduction how) {
          return F::binary_cross_entropy(x, t, {.reduction = how});
        },
        [](double x, double t) { return reference::bce(x, t); }, unit, unit));
    out.push_back(pair(
        Op::binary_cross_entropy_with_logits, r,
        [](const Tensor& x, const Tensor& t, Reduction how) {
          return F::binary_cross_entropy_with_logits(x, t, {.reduction = how});
        },
        [](double x, double t) { return reference::bce_with_logits(x, t); }, logit, unit));
    out.push_back(pair(
        Op::kl_div, r,
        [](const Tensor& x, const Tensor& t, Reduction how) { return F::kl_div(x, t, {.reduction = how}); },
        reference::kl_div, logarithm, unit));
    out.push_back(likelihood(r, -100));
  }
  out.push_back(likelihood(Reduction::none, 1));
  return out;
}

}  // namespace apex::test
