// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Matrix products, batches of them among them, and fully connected layers.
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

/// Products of attention: queries, keys and values lie as [batch, length, heads, depth], so that the two batch
/// dimensions do not continue one another, and keys are read transposed.
void head_rows(Suite& suite, std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t depth,
               DType dtype) {
  const std::string tail =
      apex::concat(", ", batch, " x ", heads, " heads, length ", length, ", depth ", depth, ' ', dtype);
  const std::string sizes = apex::concat(' ', batch, ' ', heads, ' ', length, ' ', depth, ' ', dtype);
  const double flops = 2.0 * static_cast<double>(batch * heads * length) * static_cast<double>(length * depth);
  const auto woven = [&](std::uint64_t seed) {
    return views::transpose(uniform({batch, length, heads, depth}, dtype, suite.device(), seed), 1, 2);
  };
  const auto matrix = [](const Tensor& t, std::int64_t i, std::int64_t j) {
    return views::select(views::select(t, 0, i), 0, j);
  };
  const double close = rounding_of(dtype), absolute = 1e-2;
  suite.row("batched product, scores" + tail, "heads scores" + sizes,
            [&] {
              const Tensor q = woven(45), k = views::transpose(woven(46), 2, 3),
                           scores = apex::empty({batch, heads, length, length}, dtype, suite.device());
              return Work{Unit::flops, flops, [=] { kernels::matmul(q.context(), scores.view(), in(q), in(k)); },
                          [=](Check& check) {
                            for (const std::int64_t i : {std::int64_t{0}, batch - 1}) {
                              const std::int64_t j = heads - 1, r = length / 3;
                              check.near("scores", i,
                                         row_of(matrix(scores, i, j), r)[static_cast<std::size_t>(length - 1)],
                                         dot(row_of(matrix(q, i, j), r), column_of(matrix(k, i, j), length - 1)), close,
                                         absolute);
                            }
                          }};
            },
            {apex::Op::matmul});
  suite.row("batched product, values" + tail, "heads values" + sizes,
            [&] {
              const Tensor scores = uniform({batch, heads, length, length}, dtype, suite.device(), 47), v = woven(48),
                           y = views::transpose(apex::empty({batch, length, heads, depth}, dtype, suite.device()), 1,
                                                2);
              return Work{Unit::flops, flops, [=] { kernels::matmul(v.context(), y.view(), in(scores), in(v)); },
                          [=](Check& check) {
                            for (const std::int64_t i : {std::int64_t{0}, batch - 1}) {
                              const std::int64_t j = heads - 1, r = length / 3;
                              check.near("y", i, row_of(matrix(y, i, j), r)[static_cast<std::size_t>(depth - 1)],
                                         dot(row_of(matrix(scores, i, j), r), column_of(matrix(v, i, j), depth - 1)),
                                         close, absolute);
                            }
                          }};
            },
            {apex::Op::matmul});
}

/// c = 0.5 c + 0.125 a b. c settles: what a run leaves depends on the one before, so the check knows both.
void baddbmm_row(Suite& suite, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  const double flops = 2.0 * static_cast<double>(batch * m) * static_cast<double>(n * k);
  suite.row(
      apex::concat("baddbmm ", batch, " x ", m, 'x', n, 'x', k, ' ', dtype),
      apex::concat("baddbmm ", batch, ' ', m, ' ', n, ' ', k, ' ', dtype),
      [&] {
        const Tensor a = uniform({batch, m, k}, dtype, suite.device(), 55),
                     b = uniform({batch, k, n}, dtype, suite.device(), 56),
                     c = uniform({batch, m, n}, dtype, suite.device(), 57);
        const auto run = [=] { kernels::matmul(c.context(), c.view(), in(a), in(b), {.alpha = 0.125, .beta = 0.5}); };
        return Work{Unit::flops, flops, run, [=](Check& check) {
                      const std::int64_t i = batch - 1, r = m / 3, s = n - 1;
                      const auto value = [&] { return row_of(views::select(c, 0, i), r)[static_cast<std::size_t>(s)]; };
                      const double before = value(), product = dot(row_of(views::select(a, 0, i), r),
                                                                   column_of(views::select(b, 0, i), s));
                      run();
                      check.near("c", i, value(), 0.5 * before + 0.125 * product, rounding_of(dtype), 1e-2);
                    }};
      },
      {apex::Op::baddbmm});
}

}  // namespace

void matrix_rows(Suite& suite) {
  for (const DType dtype : work_dtypes(suite)) {
    linear_rows(suite, suite.scaled(8192, 16), suite.scaled(4096, 4), suite.scaled(16384, 16), dtype);
    linear_rows(suite, 256, 2048, 1000, dtype);
    head_rows(suite, suite.scaled(32, 16), 16, suite.scaled(512, 4), 64, dtype);
    baddbmm_row(suite, suite.scaled(512, 16), suite.scaled(512, 4), 64, suite.scaled(512, 4), dtype);
  }
}

}  // namespace bench
