// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy and softmax.
#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/softmax.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::DType;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace views = apex::views;

ConstView in(const Tensor& t) { return ConstView(t.view()); }
std::vector<double> row_of(const Tensor& t, std::int64_t r) { return values_of(views::narrow(t, 0, r, 1)); }

double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

void cross_entropy_rows(Suite& suite, std::int64_t rows, std::int64_t classes, DType dtype) {
  const kernels::CrossEntropyOptions options{.reduction = kernels::Reduction::none};
  const std::string tail = apex::concat(' ', rows, 'x', classes, ' ', dtype);
  const std::string sizes = apex::concat(' ', rows, ' ', classes, ' ', dtype);
  const double bytes = static_cast<double>(rows * classes) * static_cast<double>(apex::size_of(dtype));
  const auto label_of = [=](std::int64_t r) { return static_cast<std::size_t>(r * 7919 % classes); };
  const std::int64_t some[] = {0, 1, rows / 2, rows - 1};
  suite.row("cross entropy forward" + tail, "ce_fwd" + sizes,
            [&] {
              const Tensor x = uniform({rows, classes}, dtype, suite.device(), 30, -4, 4);
              const Tensor targets = labels(rows, classes, suite.device());
              const Tensor loss = apex::empty({rows}, DType::f32, suite.device()), lse = apex::empty_like(loss);
              return Work{
                  Unit::bytes, bytes,
                  [=] { kernels::cross_entropy(x.context(), loss.view(), lse.view(), in(x), in(targets), options); },
                  [=, some = std::vector<std::int64_t>(std::begin(some), std::end(some))](Check& check) {
                    for (const auto r : some) {
                      const auto xs = row_of(x, r);
                      check.near("loss", r, row_of(loss, r)[0], log_sum_exp(xs) - xs[label_of(r)], 1e-5, 1e-5);
                    }
                  }};
            },
            {apex::Op::cross_entropy});
  suite.row("cross entropy backward" + tail, "ce_bwd" + sizes,
            [&] {
              const Tensor x = uniform({rows, classes}, dtype, suite.device(), 30, -4, 4), dx = apex::empty_like(x);
              const Tensor targets = labels(rows, classes, suite.device());
              const Tensor loss = apex::empty({rows}, DType::f32, suite.device()), lse = apex::empty_like(loss);
              const Tensor dloss = apex::full({rows}, 0.5, DType::f32, suite.device());
              kernels::cross_entropy(x.context(), loss.view(), lse.view(), in(x), in(targets), options);
              return Work{Unit::bytes, 2 * bytes,
                          [=] {
                            kernels::cross_entropy_backward(dx.context(), dx.view(), in(dloss), in(x), in(lse),
                                                            in(targets), options);
                          },
                          [=, some = std::vector<std::int64_t>(std::begin(some), std::end(some))](Check& check) {
                            for (const auto r : some) {
                              const auto xs = row_of(x, r), got = row_of(dx, r);
                              const double l = log_sum_exp(xs);
                              for (std::size_t c = 0; c < xs.size(); ++c)
                                if (c % 101 == 0 || c == label_of(r))
                                  check.near("dlogits", r, got[c],
                                             0.5 * (std::exp(xs[c] - l) - (c == label_of(r) ? 1.0 : 0.0)),
                                             rounding_of(dtype), 1e-7);
                            }
                          }};
            },
            {apex::Op::cross_entropy});
}

void softmax_rows(Suite& suite, std::int64_t rows, std::int64_t columns, DType dtype) {
  const std::string tail = apex::concat(' ', rows, 'x', columns, ' ', dtype);
  const std::string sizes = apex::concat(' ', rows, ' ', columns, ' ', dtype);
  const double bytes = static_cast<double>(rows * columns) * static_cast<double>(apex::size_of(dtype));
  suite.row("softmax forward" + tail, "softmax_fwd" + sizes,
            [&] {
              const Tensor x = uniform({rows, columns}, dtype, suite.device(), 31, -4, 4), y = apex::empty_like(x);
              return Work{Unit::bytes, 2 * bytes, [=] { kernels::softmax(y.context(), y.view(), in(x), 1); },
                          [=](Check& check) {
                            for (const std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) {
                              const auto xs = row_of(x, r), got = row_of(y, r);
                              const double l = log_sum_exp(xs);
                              for (std::size_t c = 0; c < xs.size(); c += 13)
                                check.near("softmax", r, got[c], std::exp(xs[c] - l), rounding_of(dtype) + 1e-5, 1e-7);
                            }
                          }};
            },
            {apex::Op::softmax});
  suite.row("softmax backward" + tail, "softmax_bwd" + sizes,
            [&] {
              const Tensor x = uniform({rows, columns}, dtype, suite.device(), 31, -4, 4), y = apex::empty_like(x);
              const Tensor dy = uniform({rows, columns}, dtype, suite.device(), 32), dx = apex::empty_like(x);
              kernels::softmax(y.context(), y.view(), in(x), 1);
              return Work{Unit::bytes, 3 * bytes,
                          [=] { kernels::softmax_backward(dx.context(), dx.view(), in(dy), in(y), 1); },
                          [=](Check& check) {
                            for (const std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) {
                              const auto ys = row_of(y, r), ds = row_of(dy, r), got = row_of(dx, r);
                              double sum = 0;
                              for (std::size_t c = 0; c < ys.size(); ++c) sum += ys[c] * ds[c];
                              for (std::size_t c = 0; c < ys.size(); c += 13)
                                check.near("softmax dx", r, got[c], ys[c] * (ds[c] - sum), rounding_of(dtype), 1e-6);
                            }
                          }};
            },
            {apex::Op::softmax});
}

}  // namespace

void loss_rows(Suite& suite) {
  for (const DType dtype : work_dtypes(suite)) {
    cross_entropy_rows(suite, suite.scaled(8192, 64), 50304, dtype);
    cross_entropy_rows(suite, suite.scaled(4096, 64), 128256, dtype);
    softmax_rows(suite, suite.scaled(65536, 64), 1024, dtype);
    softmax_rows(suite, suite.scaled(65536, 64), 4096, dtype);
  }
  cross_entropy_rows(suite, suite.scaled(256, 1), 1000, DType::f32);
}

}  // namespace bench
