// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

using Binary = Tensor (*)(const Tensor&, const Tensor&);
using Unary = Tensor (*)(const Tensor&);

/// Equal sizes, a row, a column and a row, a scalar, nothing; odd ones and four dimensions.
const std::vector<std::vector<Dims>> kPairs = {{{3, 5}, {3, 5}},
                                               {{3, 7}, {7}},
                                               {{1, 5}, {3, 1}},
                                               {{}, {2, 1, 3}},
                                               {{2, 3, 4, 5}, {1, 3, 1, 1}},
                                               {{2, 3, 2, 3}, {2, 3, 2, 3}},
                                               {{0, 5}, {5}}};
const std::vector<std::vector<Dims>> kSingles = {{{3, 7}}, {{}}, {{2, 3, 3, 5}}, {{33}}, {{4, 0}}};

OpCase binary(Op op, Binary f, double (*reference)(double, double), Operand second = {}) {
  return {.op = op,
          .operands = {{}, std::move(second)},
          .shapes = kPairs,
          .call = one([f](const Inputs& in) { return f(in[0], in[1]); }),
          .reference = each(reference)};
}

OpCase unary(Op op, Unary f, double (*reference)(double), double low = -1, double high = 1) {
  return {.op = op,
          .operands = {{.low = low, .high = high}},
          .shapes = kSingles,
          .call = one([f](const Inputs& in) { return f(in[0]); }),
          .reference = each(reference)};
}

OpCase compare(const char* what, Binary f, double (*reference)(double, double)) {
  OpCase c = binary(Op::compare, f, reference);
  c.what = what;
  c.gradient = Gradient::none;
  return c;
}

}  // namespace

std::vector<OpCase> elementwise_cases() {
  return {
      binary(Op::add, F::add, [](double a, double b) { return a + b; }),
      binary(Op::sub, F::sub, [](double a, double b) { return a - b; }),
      binary(Op::mul, F::mul, [](double a, double b) { return a * b; }),
      binary(Op::div, F::div, [](double a, double b) { return a / b; }, {.low = 0.5, .high = 2}),
      binary(Op::minimum, F::minimum, [](double a, double b) { return std::min(a, b); }),
      binary(Op::maximum, F::maximum, [](double a, double b) { return std::max(a, b); }),
      compare("eq", F::eq, [](double a, double b) { return double(a == b); }),
      compare("ne", F::ne, [](double a, double b) { return double(a != b); }),
      compare("lt", F::lt, [](double a, double b) { return double(a < b); }),
      compare("le", F::le, [](double a, double b) { return double(a <= b); }),
      compare("gt", F::gt, [](double a, double b) { return double(a > b); }),
      compare("ge", F::ge, [](double a, double b) { return double(a >= b); }),
      {.op = Op::scale,
       .operands = {{}},
       .shapes = kSingles,
       .call = one([](const Inputs& in) { return F::scale(in[0], -2.5, 0.75); }),
       .reference = each([](double x) { return -2.5 * x + 0.75; })},
      {.op = Op::where,
       .operands = {condition(), {}, {}},
       .shapes = {{{3, 5}, {3, 5}, {3, 5}}, {{2, 3, 4, 5}, {5}, {2, 3, 4, 5}}, {{3, 1}, {5}, {}}, {{0, 3}, {3}, {3}}},
       .call = one([](const Inputs& in) { return F::where(in[0], in[1], in[2]); }),
       .reference = each([](double c, double a, double b) { return c != 0 ? a : b; }),
       .dtypes = kAnyDType},
      unary(Op::neg, F::neg, [](double x) { return -x; }),
      unary(Op::abs, F::abs, [](double x) { return std::abs(x); }),
      unary(Op::exp, F::exp, [](double x) { return std::exp(x); }),
      unary(
          Op::log, F::log, [](double x) { return std::log(x); }, 0.5, 3),
      unary(
          Op::sqrt, F::sqrt, [](double x) { return std::sqrt(x); }, 0.5, 3),
      unary(
          Op::rsqrt, F::rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.5, 3),
      unary(
          Op::reciprocal, F::reciprocal, [](double x) { return 1 / x; }, 0.5, 3),
      unary(Op::square, F::square, [](double x) { return x * x; }),
      unary(Op::tanh, F::tanh, [](double x) { return std::tanh(x); }),
      unary(Op::sigmoid, F::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }),
      unary(Op::relu, F::relu, [](double x) { return x > 0 ? x : 0; }),
  };
}

}  // namespace apex::test
