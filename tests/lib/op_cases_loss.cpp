// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

double log_sum_exp(const std::vector<double>& v) {
  double high = -INFINITY, sum = 0;
  for (const double x : v) high = std::max(high, x);
  for (const double x : v) sum += std::exp(x - high);
  return high + std::log(sum);
}

/// softmax or its logarithm along `dim`.
OpCase normalised(Op op, Tensor (*f)(const Tensor&, int), int dim, bool logarithm) {
  return {.op = op,
          .what = concat("along ", dim),
          .operands = {{.low = -3, .high = 3}},
          .shapes = {{{3, 7}}, {{5, 3, 33}}, {{2, 3, 4, 5}}, {{0, 5}}},
          .call = one([=](const Inputs& in) { return f(in[0], dim); }),
          .reference = gives([=](const Arrays& in) {
            Dims kept;
            const auto groups = groups_of(in[0], {dim}, kept);
            Array lse{kept, {}};
            for (const auto& g : groups) lse.values.push_back(log_sum_exp(g));
            return array_of(in[0].sizes, [&](const Dims& index) {
              const double y = at(in[0], index) - at(lse, index);
              return logarithm ? y : std::exp(y);
            });
          }),
          .terms = 33};
}

OpCase entropy(const char* what, F::CrossEntropyOptions options) {
  return {.op = Op::cross_entropy,
          .what = what,
          .operands = {{.low = -3, .high = 3}, index_into(0, 1)},
          .shapes = options.reduction == kernels::Reduction::mean
                        ? std::vector<std::vector<Dims>>{{{3, 7}, {3}}, {{5, 33}, {5}}}
                        : std::vector<std::vector<Dims>>{{{3, 7}, {3}}, {{5, 33}, {5}}, {{0, 5}, {0}}},
          .call = one([=](const Inputs& in) { return F::cross_entropy(in[0], in[1], options); }),
          .reference = gives([=](const Arrays& in) {
            const std::int64_t rows = in[0].sizes[0], classes = in[0].sizes[1];
            Array losses{{rows}, {}};
            double total = 0, counted = 0;
            for (std::int64_t r = 0; r < rows; ++r) {
              const std::vector<double> x(in[0].values.begin() + r * classes, in[0].values.begin() + (r + 1) * classes);
              const auto label = static_cast<std::int64_t>(in[1].values[static_cast<std::size_t>(r)]);
              double loss = 0, mean = 0;
              for (const double v : x) mean += v / static_cast<double>(classes);
              if (label != options.ignore_index) {
                loss = log_sum_exp(x) - (1 - options.label_smoothing) * x[static_cast<std::size_t>(label)] -
                       options.label_smoothing * mean;
                counted += 1;
              }
              losses.values.push_back(loss);
              total += loss;
            }
            if (options.reduction == kernels::Reduction::none) return losses;
            return Array{{}, {options.reduction == kernels::Reduction::mean ? total / counted : total}};
          }),
          .terms = 40};
}

}  // namespace

std::vector<OpCase> loss_cases() {
  return {
      normalised(Op::softmax, F::softmax, 1, false),
      normalised(Op::softmax, F::softmax, 0, false),
      normalised(Op::log_softmax, F::log_softmax, -1, true),
      normalised(Op::log_softmax, F::log_softmax, 0, true),
      entropy("mean", {}),
      entropy("sum, smoothed", {.label_smoothing = 0.1, .reduction = kernels::Reduction::sum}),
      entropy("none, class 2 ignored", {.ignore_index = 2, .reduction = kernels::Reduction::none}),
  };
}

}  // namespace apex::test
