// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Rows of the element-wise ops and of the reductions that ops_memory.cpp has not.
#include <algorithm>
#include <cmath>

#include "apex/autograd.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/random.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/kernels/scan.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

namespace bench {

using apex::ConstView;
using apex::DType;
using apex::Op;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace F = apex::nn::functional;

double element(const Tensor& t, std::int64_t i) {
  Tensor one = t;  // of any strides: narrowed to the element, dimension by dimension
  for (int d = t.dim() - 1; d >= 0; --d) {
    one = apex::views::narrow(one, d, i % t.size(d), 1);
    i /= t.size(d);
  }
  return values_of(one)[0];
}

void simple_row(Suite& suite, const SimpleRow& row) {
  suite.row(
      row.title, row.peer,
      [&]() -> Work {
        const auto inputs = row.make();
        const auto result = std::make_shared<Tensor>();
        return {Unit::bytes, row.bytes,
                [inputs, result, run = row.run] {
                  const apex::NoGradGuard no_grad;
                  *result = run(inputs);
                },
                [inputs, result, row](Check& check) {
                  const std::int64_t n = result->numel();
                  for (const std::int64_t i : {std::int64_t{0}, n / 3, n / 2 + 1, n - 1})
                    check.near(row.title.c_str(), i, element(*result, i), row.want(inputs, i), row.relative,
                               row.absolute);
                }};
      },
      row.ops);
}

namespace {

ConstView in(const Tensor& t) { return ConstView(t.view()); }
using Tensors = std::vector<Tensor>;

struct Sizes {
  std::int64_t n;
  DType dtype;
  double bytes;  ///< of one tensor
  std::string tail;
};

Sizes sizes_of(const Suite& suite, DType dtype) {
  const std::int64_t n = suite.scaled(std::int64_t{1} << 28, 64);
  return {n, dtype, static_cast<double>(n) * static_cast<double>(apex::size_of(dtype)),
          apex::concat(' ', n, ' ', dtype)};
}

void binary_rows(Suite& suite, const Sizes& s) {
  const struct {
    kernels::BinaryOp kind;
    Op op;
    double (*f)(double, double);
  } cases[] = {{kernels::BinaryOp::sub, Op::sub, [](double a, double b) { return a - b; }},
               {kernels::BinaryOp::mul, Op::mul, [](double a, double b) { return a * b; }},
               {kernels::BinaryOp::div, Op::div, [](double a, double b) { return a / b; }},
               {kernels::BinaryOp::minimum, Op::minimum, [](double a, double b) { return std::min(a, b); }},
               {kernels::BinaryOp::maximum, Op::maximum, [](double a, double b) { return std::max(a, b); }}};
  for (const auto& c : cases) {
    const std::string title = name_of(c.kind) + s.tail;
    simple_row(suite,
               {.title = title,
                .peer = "binary " + title,
                .ops = {c.op},
                .bytes = 3 * s.bytes,
                .make =
                    [&suite, s] {
                      const Tensor a = uniform({s.n}, s.dtype, suite.device(), 70, 0.5, 2);
                      return Tensors{a, uniform({s.n}, s.dtype, suite.device(), 71, 0.5, 2), apex::empty_like(a)};
                    },
                .run =
                    [kind = c.kind](const Tensors& t) {
                      kernels::binary(t[2].context(), t[2].view(), in(t[0]), in(t[1]), kind);
                      return t[2];
                    },
                .want = [f = c.f](const Tensors& t, std::int64_t i) { return f(element(t[0], i), element(t[1], i)); },
                .relative = rounding_of(s.dtype),
                .absolute = 1e-7});
  }
}

void unary_rows(Suite& suite, const Sizes& s) {
  const struct {
    kernels::UnaryOp kind;
    Op op;
    double (*f)(double);
  } cases[] = {{kernels::UnaryOp::neg, Op::neg, [](double x) { return -x; }},
               {kernels::UnaryOp::abs, Op::abs, [](double x) { return std::abs(x); }},
               {kernels::UnaryOp::exp, Op::exp, [](double x) { return std::exp(x); }},
               {kernels::UnaryOp::log, Op::log, [](double x) { return std::log(x); }},
               {kernels::UnaryOp::sqrt, Op::sqrt, [](double x) { return std::sqrt(x); }},
               {kernels::UnaryOp::rsqrt, Op::rsqrt, [](double x) { return 1 / std::sqrt(x); }},
               {kernels::UnaryOp::reciprocal, Op::reciprocal, [](double x) { return 1 / x; }},
               {kernels::UnaryOp::square, Op::square, [](double x) { return x * x; }},
               {kernels::UnaryOp::tanh, Op::tanh, [](double x) { return std::tanh(x); }},
               {kernels::UnaryOp::sigmoid, Op::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
               {kernels::UnaryOp::erf, Op::erf, [](double x) { return std::erf(x); }}};
  for (const auto& c : cases) {
    const std::string title = name_of(c.kind) + s.tail;
    simple_row(suite, {.title = title,
                       .peer = "unary " + title,
                       .ops = {c.op},
                       .bytes = 2 * s.bytes,
                       .make =
                           [&suite, s] {
                             const Tensor x = uniform({s.n}, s.dtype, suite.device(), 72, 0.5, 2);
                             return Tensors{x, apex::empty_like(x)};
                           },
                       .run =
                           [kind = c.kind](const Tensors& t) {
                             kernels::unary(t[1].context(), t[1].view(), in(t[0]), kind);
                             return t[1];
                           },
                       .want = [f = c.f](const Tensors& t, std::int64_t i) { return f(element(t[0], i)); },
                       .relative = rounding_of(s.dtype) + 1e-6,
                       .absolute = 1e-6});
  }
}

void other_rows(Suite& suite, const Sizes& s) {
  const auto x = [&suite, s](std::uint64_t seed) { return uniform({s.n}, s.dtype, suite.device(), seed); };
  const auto mask_bytes = static_cast<double>(s.n);
  simple_row(suite, {.title = "scale" + s.tail,
                     .peer = "scale" + s.tail,
                     .ops = {Op::scale},
                     .bytes = 2 * s.bytes,
                     .make =
                         [x] {
                           const Tensor a = x(73);
                           return Tensors{a, apex::empty_like(a)};
                         },
                     .run =
                         [](const Tensors& t) {
                           kernels::scale_shift(t[1].context(), t[1].view(), in(t[0]), 1.5, 0.25);
                           return t[1];
                         },
                     .want = [](const Tensors& t, std::int64_t i) { return 1.5 * element(t[0], i) + 0.25; },
                     .relative = rounding_of(s.dtype),
                     .absolute = 1e-6});
  simple_row(suite,
             {.title = "compare" + s.tail,
              .peer = "compare" + s.tail,
              .ops = {Op::compare},
              .bytes = 2 * s.bytes + mask_bytes,
              .make =
                  [x] {
                    const Tensor a = x(74);
                    return Tensors{a, x(75), apex::empty_like(a, DType::boolean)};
                  },
              .run =
                  [](const Tensors& t) {
                    kernels::compare(t[2].context(), t[2].view(), in(t[0]), in(t[1]), kernels::CompareOp::lt);
                    return t[2];
                  },
              .want = [](const Tensors& t, std::int64_t i) { return double(element(t[0], i) < element(t[1], i)); }});
  simple_row(suite,
             {.title = "where" + s.tail,
              .peer = "where" + s.tail,
              .ops = {Op::where},
              .bytes = 3 * s.bytes + mask_bytes,
              .make =
                  [x] {
                    const Tensor a = x(76), b = x(77);
                    return Tensors{F::lt(a, b), a, b, apex::empty_like(a)};
                  },
              .run =
                  [](const Tensors& t) {
                    kernels::where(t[3].context(), t[3].view(), in(t[0]), in(t[1]), in(t[2]));
                    return t[3];
                  },
              .want = [](const Tensors& t, std::int64_t i) { return std::min(element(t[1], i), element(t[2], i)); }});
  simple_row(suite, {.title = "dropout" + s.tail,
                     .peer = "dropout" + s.tail,
                     .ops = {Op::dropout},
                     .bytes = 2 * s.bytes,
                     .make =
                         [x] {
                           const Tensor a = x(78);
                           return Tensors{a, apex::empty_like(a), apex::empty_like(a, DType::boolean)};
                         },
                     .run =
                         [](const Tensors& t) {
                           kernels::dropout(t[1].context(), t[1].view(), {}, in(t[0]), 0.5, {.seed = 79});
                           return t[1];
                         },
                     .want =
                         [](const Tensors& t, std::int64_t i) {
                           kernels::dropout(t[1].context(), t[1].view(), t[2].view(), in(t[0]), 0.5, {.seed = 79});
                           return element(t[2], i) * 2 * element(t[0], i);
                         },
                     .relative = rounding_of(s.dtype),
                     .absolute = 1e-7});
}

/// Reduces rows of a matrix.
struct RowCase {
  const char* name;
  Op op;
  DType out;
  std::function<void(const Tensor& y, const Tensor& x)> run;
  std::function<double(const std::vector<double>& row)> of;
};

}  // namespace

void elementwise_rows(Suite& suite) {
  std::vector<DType> dtypes{DType::f32};
  if (suite.on_cuda()) dtypes.push_back(work_dtypes(suite).front());
  for (const DType dtype : dtypes) {
    const Sizes s = sizes_of(suite, dtype);
    binary_rows(suite, s);
    unary_rows(suite, s);
    other_rows(suite, s);
  }
}

void reduction_rows(Suite& suite) {
  const std::int64_t rows = suite.scaled(65536, 64), columns = 4096;
  const DType dtype = work_dtypes(suite).front();
  const double bytes = static_cast<double>(rows * columns) * static_cast<double>(apex::size_of(dtype));
  const auto reduced = [](kernels::ReduceOp kind) {
    return [kind](const Tensor& y, const Tensor& x) { kernels::reduce(y.context(), y.view(), in(x), {1}, kind); };
  };
  using Row = std::vector<double>;
  const auto place = [](auto found, const Row& r) { return static_cast<double>(found - r.begin()); };
  const RowCase cases[] = {{"mean", Op::mean, dtype, reduced(kernels::ReduceOp::mean),
                            [](const Row& r) {
                              double sum = 0;
                              for (const double v : r) sum += v;
                              return sum / static_cast<double>(r.size());
                            }},
                           {"max", Op::max, dtype, reduced(kernels::ReduceOp::max),
                            [](const Row& r) { return *std::max_element(r.begin(), r.end()); }},
                           {"min", Op::min, dtype, reduced(kernels::ReduceOp::min),
                            [](const Row& r) { return *std::min_element(r.begin(), r.end()); }},
                           {"argmax", Op::argmax, DType::i64,
                            [](const Tensor& y, const Tensor& x) { kernels::argmax(y.context(), y.view(), in(x), 1); },
                            [place](const Row& r) { return place(std::max_element(r.begin(), r.end()), r); }},
                           {"argmin", Op::argmin, DType::i64,
                            [](const Tensor& y, const Tensor& x) { kernels::argmin(y.context(), y.view(), in(x), 1); },
                            [place](const Row& r) { return place(std::min_element(r.begin(), r.end()), r); }}};
  for (const RowCase& c : cases)
    simple_row(suite,
               {.title = apex::concat(c.name, " of rows ", rows, 'x', columns, ' ', dtype),
                .peer = apex::concat("reduce ", c.name, ' ', rows, ' ', columns, ' ', dtype),
                .ops = {c.op},
                .bytes = bytes,
                .make =
                    [&suite, rows, dtype, out = c.out] {
                      return Tensors{uniform({rows, columns}, dtype, suite.device(), 80),
                                     apex::empty({rows, 1}, out, suite.device())};
                    },
                .run =
                    [run = c.run](const Tensors& t) {
                      run(t[1], t[0]);
                      return t[1];
                    },
                .want = [of = c.of](const Tensors& t,
                                    std::int64_t i) { return of(values_of(apex::views::narrow(t[0], 0, i, 1))); },
                .relative = rounding_of(dtype),
                .absolute = 1e-5});
  for (const Op op : {Op::any, Op::all})
    simple_row(suite, {.title = apex::concat(apex::row_of(op).name, " of rows ", rows, 'x', columns, " bool"),
                       .peer = apex::concat("reduce ", apex::row_of(op).name, ' ', rows, ' ', columns, " bool"),
                       .ops = {op},
                       .bytes = static_cast<double>(rows * columns),
                       .make =
                           [&suite, rows] {
                             return Tensors{apex::full({rows, columns}, 1.0, DType::boolean, suite.device())};
                           },
                       .run = [op](const Tensors& t) { return op == Op::any ? F::any(t[0], {1}) : F::all(t[0], {1}); },
                       .want = [](const Tensors&, std::int64_t) { return 1.0; }});
  simple_row(suite, {.title = apex::concat("cumsum of rows ", rows, 'x', columns, ' ', dtype),
                     .peer = apex::concat("cumsum ", rows, ' ', columns, ' ', dtype),
                     .ops = {Op::cumsum},
                     .bytes = 2 * bytes,
                     .make =
                         [&suite, rows, dtype] {
                           const Tensor x = uniform({rows, columns}, dtype, suite.device(), 81);
                           return Tensors{x, apex::empty_like(x)};
                         },
                     .run =
                         [](const Tensors& t) {
                           kernels::cumsum(t[1].context(), t[1].view(), in(t[0]), 1);
                           return t[1];
                         },
                     .want =
                         [](const Tensors& t, std::int64_t i) {
                           const auto row = values_of(apex::views::narrow(t[0], 0, i / columns, 1));
                           double sum = 0;
                           for (std::int64_t c = 0; c <= i % columns; ++c) sum += row[static_cast<std::size_t>(c)];
                           return sum;
                         },
                     .relative = rounding_of(dtype),
                     .absolute = 1e-5});
}

}  // namespace bench
