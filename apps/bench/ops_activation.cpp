// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Activations, pointwise losses and nll_loss.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "apex/core/error.hpp"
#include "apex/kernels/activation.hpp"
#include "apex/kernels/loss.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::DType;
using apex::Op;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace views = apex::views;
using kernels::Activation;
using kernels::ActivationKind;

ConstView in(const Tensor& t) { return ConstView(t.view()); }
double at(const Tensor& t, std::int64_t i) { return values_of(views::narrow(t, 0, i, 1))[0]; }
std::array<std::int64_t, 5> places(std::int64_t n) { return {0, n / 5, n / 3, n / 2 + 1, n - 1}; }

double log1p_exp(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

using Function = double (*)(double);
double slope_of(Function f, double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }

struct ActivationRow {
  const char* name;
  Op op;
  Activation f;
  Function reference;
};
const std::vector<ActivationRow>& activations() {
  static const std::vector<ActivationRow> all = {
      {"gelu", Op::gelu, {ActivationKind::gelu}, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
      {"gelu_tanh",
       Op::gelu,
       {ActivationKind::gelu_tanh},
       [](double x) { return x * sigmoid(2 * 0.79788456080286536 * (x + 0.044715 * x * x * x)); }},
      {"silu", Op::silu, {ActivationKind::silu}, [](double x) { return x * sigmoid(x); }},
      {"leaky_relu", Op::leaky_relu, {ActivationKind::leaky_relu, 0.2}, [](double x) { return x > 0 ? x : 0.2 * x; }},
      {"elu", Op::elu, {ActivationKind::elu, 1.0}, [](double x) { return x > 0 ? x : std::expm1(x); }},
      {"softplus", Op::softplus, {ActivationKind::softplus, 1.0, 20.0}, log1p_exp},
      {"clamp", Op::clamp, {ActivationKind::clamp, -0.5, 0.5}, [](double x) { return std::clamp(x, -0.5, 0.5); }},
      {"hardtanh",
       Op::hardtanh,
       {ActivationKind::hardtanh, -0.5, 0.5},
       [](double x) { return std::clamp(x, -0.5, 0.5); }},
      {"log_sigmoid", Op::log_sigmoid, {ActivationKind::log_sigmoid}, [](double x) { return -log1p_exp(-x); }},
  };
  return all;
}

double bytes_of(std::int64_t n, DType dtype) {
  return static_cast<double>(n) * static_cast<double>(apex::size_of(dtype));
}

void activation_pair(Suite& suite, const ActivationRow& row, std::int64_t n, DType dtype) {
  const std::string tail = apex::concat(' ', n, ' ', dtype);
  const auto tensor = [&](std::uint64_t seed) { return uniform({n}, dtype, suite.device(), seed, -4, 4); };
  suite.row(row.name + tail, apex::concat("act_fwd ", row.name, tail),
            [&] {
              const Tensor x = tensor(40), y = apex::empty_like(x);
              return Work{Unit::bytes, 2 * bytes_of(n, dtype),
                          [=] { kernels::activation(y.context(), y.view(), in(x), row.f); },
                          [=](Check& check) {
                            for (const auto i : places(n))
                              check.near(row.name, i, at(y, i), row.reference(at(x, i)), rounding_of(dtype), 1e-6);
                          }};
            },
            {row.op});
  suite.row(row.name + (" backward" + tail), apex::concat("act_bwd ", row.name, tail),
            [&] {
              const Tensor x = tensor(40), dy = tensor(41), dx = apex::empty_like(x);
              return Work{
                  Unit::bytes, 3 * bytes_of(n, dtype),
                  [=] { kernels::activation_backward(dx.context(), dx.view(), in(dy), in(x), row.f); },
                  [=](Check& check) {
                    for (const auto i : places(n)) {
                      const double v = at(x, i);
                      if (std::min({std::abs(v), std::abs(v - 0.5), std::abs(v + 0.5)}) > 1e-4)  // not at a corner
                        check.near(row.name, i, at(dx, i), at(dy, i) * slope_of(row.reference, v), rounding_of(dtype),
                                   1e-6);
                    }
                  }};
            },
            {row.op});
}

struct LossRow {
  const char* name;
  Op op;
  kernels::PointwiseLoss options;
  double x_low, x_high, t_low, t_high;
  double (*reference)(double, double);
};
const std::vector<LossRow>& losses() {
  using K = kernels::LossKind;
  static const std::vector<LossRow> all = {
      {"mse_loss", Op::mse_loss, {.kind = K::mse}, -1, 1, -1, 1, [](double x, double t) { return (x - t) * (x - t); }},
      {"l1_loss", Op::l1_loss, {.kind = K::l1}, -1, 1, -1, 1, [](double x, double t) { return std::abs(x - t); }},
      {"smooth_l1_loss",
       Op::smooth_l1_loss,
       {.kind = K::smooth_l1},
       -1,
       1,
       -1,
       1,
       [](double x, double t) {
         const double d = std::abs(x - t);
         return d < 1 ? d * d / 2 : d - 0.5;
       }},
      {"huber_loss",
       Op::huber_loss,
       {.kind = K::huber, .delta = 0.5},
       -1,
       1,
       -1,
       1,
       [](double x, double t) {
         const double d = std::abs(x - t);
         return d <= 0.5 ? d * d / 2 : 0.5 * (d - 0.25);
       }},
      {"binary_cross_entropy",
       Op::binary_cross_entropy,
       {.kind = K::bce},
       0.05,
       0.95,
       0,
       1,
       [](double x, double t) { return -(t * std::log(x) + (1 - t) * std::log(1 - x)); }},
      {"binary_cross_entropy_with_logits",
       Op::binary_cross_entropy_with_logits,
       {.kind = K::bce_with_logits},
       -4,
       4,
       0,
       1,
       [](double x, double t) { return (1 - t) * log1p_exp(x) + t * log1p_exp(-x); }},
      {"kl_div",
       Op::kl_div,
       {.kind = K::kl_div},
       -3,
       0,
       0.05,
       1,
       [](double x, double t) { return t * (std::log(t) - x); }},
  };
  return all;
}

void loss_pair(Suite& suite, const LossRow& row, std::int64_t n, DType dtype) {
  const std::string tail = apex::concat(' ', n, ' ', dtype);
  const DType wide = apex::accum_dtype(dtype);
  const auto x_of = [&] { return uniform({n}, dtype, suite.device(), 43, row.x_low, row.x_high); };
  const auto t_of = [&] { return uniform({n}, dtype, suite.device(), 44, row.t_low, row.t_high); };
  suite.row(apex::concat(row.name, " mean", tail), apex::concat("loss_fwd ", row.name, tail),
            [&] {
              const Tensor x = x_of(), t = t_of(), loss = apex::empty({}, wide, suite.device());
              return Work{Unit::bytes, 2 * bytes_of(n, dtype),
                          [=] { kernels::pointwise_loss(x.context(), loss.view(), in(x), in(t), {}, {}, row.options); },
                          [=](Check& check) {
                            double sum = 0;
                            constexpr std::int64_t kPiece = std::int64_t{1} << 20;
                            for (std::int64_t i = 0; i < n; i += kPiece) {
                              const auto length = std::min(kPiece, n - i);
                              const auto xs = values_of(views::narrow(x, 0, i, length)),
                                         ts = values_of(views::narrow(t, 0, i, length));
                              for (std::size_t k = 0; k < xs.size(); ++k) sum += row.reference(xs[k], ts[k]);
                            }
                            check.near(row.name, 0, values_of(loss)[0], sum / static_cast<double>(n), 1e-5, 0);
                          }};
            },
            {row.op});
  suite.row(
      apex::concat(row.name, " backward", tail), apex::concat("loss_bwd ", row.name, tail),
      [&] {
        const Tensor x = x_of(), t = t_of(), dx = apex::empty_like(x);
        // Of a sum: a mean's gradients of so many elements are too small for 16 bits.
        const Tensor g = apex::full({}, 0.5, wide, suite.device());
        kernels::PointwiseLoss options = row.options;
        options.reduction = kernels::Reduction::sum;
        return Work{
            Unit::bytes, 3 * bytes_of(n, dtype),
            [=] { kernels::pointwise_loss_backward(x.context(), dx.view(), {}, in(g), in(x), in(t), {}, {}, options); },
            [=](Check& check) {
              for (const auto i : places(n)) {
                const double v = at(x, i), target = at(t, i), h = 1e-5;
                const double d = std::abs(v - target);
                if (d < 1e-4 || std::abs(d - 0.5) < 1e-4) continue;  // a corner
                const double want = 0.5 * (row.reference(v + h, target) - row.reference(v - h, target)) / (2 * h);
                check.near(row.name, i, at(dx, i), want, rounding_of(dtype) + 1e-6, 1e-6);
              }
            }};
      },
      {row.op});
}

void nll_pair(Suite& suite, DType dtype) {
  const std::int64_t n = suite.scaled(32, 8), classes = 150, side = suite.scaled(256, 4);
  const std::string tail = apex::concat(' ', n, 'x', classes, 'x', side, 'x', side, ' ', dtype);
  const std::string sizes = apex::concat(' ', n, ' ', classes, ' ', side, ' ', dtype);
  const std::int64_t places_of_all = n * side * side;
  const DType wide = apex::accum_dtype(dtype);
  const auto make = [=, &suite] { return uniform({n, classes, side, side}, dtype, suite.device(), 45, -8, 0); };
  const auto labels_of = [=, &suite] {
    return views::reshape(labels(places_of_all, classes, suite.device()), {n, side, side});
  };
  // Of x one element a place is read, in sectors of 32 bytes.
  suite.row("nll_loss" + tail, "nll_fwd" + sizes,
            [&] {
              const Tensor x = make(), l = labels_of(), loss = apex::empty({}, wide, suite.device());
              return Work{Unit::bytes, static_cast<double>(places_of_all) * (8 + 32),
                          [=] { kernels::nll_loss(x.context(), loss.view(), {}, in(x), in(l), {}); },
                          [=](Check& check) {
                            double sum = 0;
                            std::int64_t i = 0;
                            for (std::int64_t image = 0; image < n; ++image) {
                              const auto xs = values_of(views::select(x, 0, image));
                              for (std::int64_t p = 0; p < side * side; ++p, ++i)
                                sum -= xs[static_cast<std::size_t>(i * 7919 % classes * side * side + p)];
                            }
                            check.near("nll_loss", 0, values_of(loss)[0], sum / static_cast<double>(places_of_all),
                                       1e-5, 0);
                          }};
            },
            {Op::nll_loss});
  suite.row("nll_loss backward" + tail, "nll_bwd" + sizes,
            [&] {
              const Tensor l = labels_of(), dx = apex::empty({n, classes, side, side}, dtype, suite.device());
              const Tensor g = apex::full({}, 0.5, wide, suite.device());
              return Work{Unit::bytes, bytes_of(dx.numel(), dtype),
                          [=] {
                            kernels::nll_loss_backward(dx.context(), dx.view(), in(g), in(l), {}, {},
                                                       {.reduction = kernels::Reduction::sum});
                          },
                          [=](Check& check) {
                            const auto got = values_of(views::select(dx, 0, n - 1));
                            for (std::int64_t k = 0; k < static_cast<std::int64_t>(got.size()); k += 211) {
                              const std::int64_t c = k / (side * side), p = (n - 1) * side * side + k % (side * side);
                              check.near("nll_loss", k, got[static_cast<std::size_t>(k)],
                                         c == p * 7919 % classes ? -0.5 : 0, 0, 0);
                            }
                          }};
            },
            {Op::nll_loss});
}

}  // namespace

void activation_rows(Suite& suite) {
  const std::int64_t n = suite.scaled(std::int64_t{1} << 28, 64);
  for (const DType dtype : work_dtypes(suite)) {
    for (const auto& row : activations()) activation_pair(suite, row, n, dtype);
    for (const auto& row : losses()) loss_pair(suite, row, n, dtype);
    nll_pair(suite, dtype);
  }
}

}  // namespace bench
