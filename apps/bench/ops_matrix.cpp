// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Matrix products and fully connected layers.
#include <algorithm>

#include "apex/core/error.hpp"
#include "apex/kernels/matmul.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::DType;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace views = apex::views;

ConstView in(const Tensor& t) { return ConstView(t.view()); }
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
std::vector<double> row_of(const Tensor& t, std::int64_t i) { return values_of(views::narrow(t, 0, i, 1)); }
std::vector<double> column_of(const Tensor& t, std::int64_t i) { return values_of(views::narrow(t, 1, i, 1)); }

void linear_rows(Suite& suite, std::int64_t rows, std::int64_t inputs, std::int64_t outputs, DType dtype) {
  const std::string tail = apex::concat(' ', rows, 'x', inputs, " to ", outputs, ' ', dtype);
  const std::string sizes = apex::concat(' ', rows, ' ', inputs, ' ', outputs, ' ', dtype);
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) * static_cast<double>(outputs);
  const auto tensor = [&](std::uint64_t seed, std::int64_t a, std::int64_t b) {
    return uniform({a, b}, dtype, suite.device(), seed);
  };
  // (row, column) pairs that are looked at.
  const auto pairs = [](std::int64_t m, std::int64_t n) {
    return std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {m / 3, n / 2}, {m - 1, n - 1}, {m / 2, n / 3}};
  };
  const double close = rounding_of(dtype), absolute = 1e-2;
  suite.row("linear forward" + tail, "linear_fwd" + sizes,
            [&] {
              const Tensor x = tensor(40, rows, inputs), w = tensor(41, outputs, inputs);
              const Tensor bias = uniform({outputs}, dtype, suite.device(), 42),
                           y = apex::empty({rows, outputs}, dtype, suite.device());
              return Work{Unit::flops, flops,
                          [=] { kernels::linear_forward(y.context(), y.view(), in(x), in(w), in(bias)); },
                          [=](Check& check) {
                            for (const auto& [r, c] : pairs(rows, outputs))
                              check.near("y", r, row_of(y, r)[static_cast<std::size_t>(c)],
                                         dot(row_of(x, r), row_of(w, c)) + row_of(bias, c)[0], close, absolute);
                          }};
            },
            {apex::Op::linear});
  suite.row("linear data gradient" + tail, "linear_dgrad" + sizes,
            [&] {
              const Tensor dy = tensor(43, rows, outputs), w = tensor(41, outputs, inputs);
              const Tensor dx = apex::empty({rows, inputs}, dtype, suite.device());
              return Work{Unit::flops, flops,
                          [=] { kernels::linear_backward_data(dx.context(), dx.view(), in(dy), in(w)); },
                          [=](Check& check) {
                            for (const auto& [r, c] : pairs(rows, inputs))
                              check.near("dx", r, row_of(dx, r)[static_cast<std::size_t>(c)],
                                         dot(row_of(dy, r), column_of(w, c)), close, absolute);
                          }};
            },
            {apex::Op::linear});
  suite.row("linear weight and bias gradient" + tail, "linear_wgrad" + sizes,
            [&] {
              const Tensor dy = tensor(43, rows, outputs), x = tensor(40, rows, inputs);
              const Tensor dw = apex::empty({outputs, inputs}, dtype, suite.device());
              const Tensor db = apex::empty({outputs}, dtype, suite.device());
              return Work{Unit::flops, flops,
                          [=] { kernels::linear_backward_weight(dw.context(), dw.view(), db.view(), in(dy), in(x)); },
                          [=](Check& check) {
                            for (const auto& [r, c] : pairs(outputs, inputs)) {
                              const auto column = column_of(dy, r);
                              double sum = 0;
                              for (const double v : column) sum += v;
                              check.near("dw", r, row_of(dw, r)[static_cast<std::size_t>(c)],
                                         dot(column, column_of(x, c)), close, absolute);
                              check.near("db", r, row_of(db, r)[0], sum, close, absolute);
                            }
                          }};
            },
            {apex::Op::linear});
}

}  // namespace

void matrix_rows(Suite& suite) {
  for (const DType dtype : work_dtypes(suite)) {
    linear_rows(suite, suite.scaled(8192, 16), suite.scaled(4096, 4), suite.scaled(16384, 16), dtype);
    linear_rows(suite, 256, 2048, 1000, dtype);
  }
}

}  // namespace bench
