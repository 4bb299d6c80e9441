// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Rows of ops that move elements, by place or by index, and of those that order them; layers that other files have not.
#include <algorithm>
#include <cmath>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/indexing.hpp"
#include "apex/kernels/pool.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/kernels/softmax.hpp"
#include "apex/kernels/sort.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::DType;
using apex::MemoryFormat;
using apex::Op;
using apex::Tensor;
using Tensors = std::vector<Tensor>;
namespace kernels = apex::kernels;
namespace views = apex::views;
namespace F = apex::nn::functional;

ConstView in(const Tensor& t) { return ConstView(t.view()); }

/// A matrix that the moving ops work on.
struct Matrix {
  std::int64_t rows, columns;
  DType dtype;
  double bytes;
  std::string sizes;  ///< "65536x4096 f16"
  std::string words;  ///< for the peer
};
Matrix matrix_of(const Suite& suite) {
  const std::int64_t rows = suite.scaled(65536, 64), columns = 4096;
  const DType dtype = work_dtypes(suite).front();
  return {rows,
          columns,
          dtype,
          static_cast<double>(rows * columns) * static_cast<double>(apex::size_of(dtype)),
          apex::concat(rows, 'x', columns, ' ', dtype),
          apex::concat(rows, ' ', columns, ' ', dtype)};
}

/// A row that moves elements of one matrix: result[r, c] = x[from(r, c)]; negative: 0.
void moving_row(Suite& suite, const Matrix& m, const char* name, std::vector<Op> ops, double amount,
                std::function<Tensor(const Tensor&)> run, std::int64_t columns,
                std::function<std::int64_t(std::int64_t r, std::int64_t c)> from) {
  simple_row(suite, {.title = apex::concat(name, ' ', m.sizes),
                     .peer = apex::concat("move ", name, ' ', m.words),
                     .ops = std::move(ops),
                     .bytes = amount,
                     .make =
                         [&suite, m] {
                           return Tensors{uniform({m.rows, m.columns}, m.dtype, suite.device(), 82)};
                         },
                     .run = [run](const Tensors& t) { return run(t[0]); },
                     .want =
                         [from, columns](const Tensors& t, std::int64_t i) {
                           const std::int64_t at = from(i / columns, i % columns);
                           return at < 0 ? 0 : element(t[0], at);
                         }});
}

void transfer_row(Suite& suite) {
  if (!suite.on_cuda() && !suite.listing()) return;  // on the CPU nothing moves
  const std::int64_t n = std::int64_t{1} << 24;
  simple_row(suite, {.title = apex::concat("to_device ", n, " f32 from the host"),
                     .peer = apex::concat("to_device ", n, " f32"),
                     .ops = {Op::to_device},
                     .bytes = 4.0 * static_cast<double>(n),
                     .make = [n] { return Tensors{uniform({n}, DType::f32, apex::kCpu, 83)}; },
                     .run = [device = suite.device()](const Tensors& t) { return F::to(t[0], device); },
                     .want = [](const Tensors& t, std::int64_t i) { return element(t[0], i); }});
}

Tensor random_indices(const Suite& suite, const apex::Dims& sizes, std::int64_t below, std::uint64_t seed) {
  const Tensor u = uniform(sizes, DType::f64, suite.device(), seed, 0, static_cast<double>(below));
  Tensor i = apex::empty(sizes, DType::i64, suite.device());
  kernels::copy(i.context(), i.view(), in(u));
  return i;
}
std::int64_t index_at(const Tensor& t, std::int64_t i) { return static_cast<std::int64_t>(element(t, i)); }

/// Lookups in a table of a language model's size, and the gradient of it.
void table_rows(Suite& suite) {
  const DType dtype = work_dtypes(suite).front();
  const std::int64_t entries = suite.scaled(50304, 16), features = 1024, tokens = suite.scaled(65536, 32);
  const auto item = static_cast<double>(apex::size_of(dtype));
  const double row_bytes = static_cast<double>(features) * item, index_bytes = 8.0 * static_cast<double>(tokens);
  const std::string tail = apex::concat(' ', tokens, " of ", entries, 'x', features, ' ', dtype);
  const std::string words = apex::concat(' ', tokens, ' ', entries, ' ', features, ' ', dtype);
  const auto make = [&suite, entries, tokens, dtype] {
    return Tensors{uniform({entries, features}, dtype, suite.device(), 84),
                   random_indices(suite, {tokens}, entries, 85)};
  };
  const auto looked_up = [](const Tensors& t, std::int64_t i) {
    return element(t[0], index_at(t[1], i / features) * features + i % features);
  };
  const double forward = 2 * static_cast<double>(tokens) * row_bytes + index_bytes;
  simple_row(suite, {.title = "embedding" + tail,
                     .peer = "embedding" + words,
                     .ops = {Op::embedding},
                     .bytes = forward,
                     .make = make,
                     .run = [](const Tensors& t) { return F::embedding(t[1], t[0]); },
                     .want = looked_up});
  simple_row(suite, {.title = "index_select" + tail,
                     .peer = "index_select" + words,
                     .ops = {Op::index_select},
                     .bytes = forward,
                     .make = make,
                     .run = [](const Tensors& t) { return F::index_select(t[0], 0, t[1]); },
                     .want = looked_up});
  simple_row(suite, {.title = "embedding gradient" + tail,
                     .peer = "embedding_bwd" + words,
                     .ops = {Op::embedding},
                     .bytes = static_cast<double>(tokens + entries) * row_bytes + index_bytes,
                     .make =
                         [&suite, entries, tokens, dtype] {
                           return Tensors{apex::empty({entries, features}, dtype, suite.device()),
                                          random_indices(suite, {tokens}, entries, 85),
                                          uniform({tokens, features}, dtype, suite.device(), 86)};
                         },
                     .run =
                         [](const Tensors& t) {
                           const Tensor index = views::expand(views::reshape(t[1], {-1, 1}), t[2].sizes());
                           kernels::scatter_add(t[0].context(), t[0].view(), {}, in(t[2]), in(index), 0);
                           return t[0];
                         },
                     .want =
                         [](const Tensors& t, std::int64_t i) {
                           double sum = 0;
                           const auto indices = values_of(t[1]);
                           for (std::size_t k = 0; k < indices.size(); ++k)
                             if (static_cast<std::int64_t>(indices[k]) == i / features)
                               sum += element(t[2], static_cast<std::int64_t>(k) * features + i % features);
                           return sum;
                         },
                     .relative = rounding_of(dtype),
                     .absolute = 1e-6});
}

void place_rows(Suite& suite, const Matrix& m) {
  const std::int64_t rows = m.rows, columns = m.columns;
  const auto pair = [&suite, m, rows, columns] {
    const Tensor x = uniform({rows, columns}, m.dtype, suite.device(), 87);
    return Tensors{x, random_indices(suite, {rows, columns}, columns, 88), apex::empty_like(x)};
  };
  const double index_bytes = 8.0 * static_cast<double>(rows * columns);
  simple_row(suite,
             {.title = "gather " + m.sizes,
              .peer = "gather " + m.words,
              .ops = {Op::gather},
              .bytes = 2 * m.bytes + index_bytes,
              .make = pair,
              .run =
                  [](const Tensors& t) {
                    kernels::gather(t[2].context(), t[2].view(), in(t[0]), in(t[1]), 1);
                    return t[2];
                  },
              .want = [columns](const Tensors& t,
                                std::int64_t i) { return element(t[0], i / columns * columns + index_at(t[1], i)); }});
  simple_row(suite, {.title = "scatter_add " + m.sizes,
                     .peer = "scatter_add " + m.words,
                     .ops = {Op::scatter_add},
                     .bytes = 2 * m.bytes + index_bytes,
                     .make = pair,
                     .run =
                         [](const Tensors& t) {
                           kernels::scatter_add(t[2].context(), t[2].view(), {}, in(t[0]), in(t[1]), 1);
                           return t[2];
                         },
                     .want =
                         [columns](const Tensors& t, std::int64_t i) {
                           const auto xs = values_of(views::narrow(t[0], 0, i / columns, 1));
                           const auto to = values_of(views::narrow(t[1], 0, i / columns, 1));
                           double sum = 0;
                           for (std::size_t c = 0; c < xs.size(); ++c)
                             if (static_cast<std::int64_t>(to[c]) == i % columns) sum += xs[c];
                           return sum;
                         },
                     .relative = rounding_of(m.dtype),
                     .absolute = 1e-5});
  const std::int64_t classes = 1000;
  simple_row(suite, {.title = apex::concat("one_hot ", rows, " in ", classes, " i64"),
                     .peer = apex::concat("one_hot ", rows, ' ', classes),
                     .ops = {Op::one_hot},
                     .bytes = 8.0 * static_cast<double>(rows * (classes + 1)),
                     .make =
                         [&suite, rows] {
                           return Tensors{labels(rows, classes, suite.device()),
                                          apex::empty({rows, classes}, DType::i64, suite.device())};
                         },
                     .run =
                         [](const Tensors& t) {
                           kernels::one_hot(t[1].context(), t[1].view(), in(t[0]));
                           return t[1];
                         },
                     .want = [](const Tensors& t,
                                std::int64_t i) { return double(index_at(t[0], i / classes) == i % classes); }});
}

void order_rows(Suite& suite) {
  const auto sorted = [&suite](std::int64_t rows, std::int64_t columns) {
    simple_row(suite, {.title = apex::concat("sort ", rows, 'x', columns, " f32"),
                       .peer = apex::concat("sort ", rows, ' ', columns, " f32"),
                       .ops = {Op::sort},
                       .bytes = 16.0 * static_cast<double>(rows * columns),
                       .make =
                           [&suite, rows, columns] {
                             const Tensor x = uniform({rows, columns}, DType::f32, suite.device(), 89);
                             return Tensors{x, apex::empty_like(x, DType::i64), apex::empty_like(x)};
                           },
                       .run =
                           [](const Tensors& t) {
                             kernels::sort(t[2].context(), t[2].view(), t[1].view(), in(t[0]), 1);
                             return t[2];
                           },
                       .want =
                           [columns](const Tensors& t, std::int64_t i) {
                             auto row = values_of(views::narrow(t[0], 0, i / columns, 1));
                             std::sort(row.begin(), row.end());
                             return row[static_cast<std::size_t>(i % columns)];
                           }});
  };
  sorted(1, suite.scaled(1 << 20, 4));
  sorted(suite.scaled(16384, 64), 1000);
  const std::int64_t rows = suite.scaled(65536, 64), columns = 1000;
  for (const std::int64_t k : {5, 100})
    simple_row(suite, {.title = apex::concat("topk ", k, " of ", rows, 'x', columns, " f32"),
                       .peer = apex::concat("topk ", k, ' ', rows, ' ', columns, " f32"),
                       .ops = {Op::topk},
                       .bytes = 4.0 * static_cast<double>(rows * columns) + 12.0 * static_cast<double>(rows * k),
                       .make =
                           [&suite, rows, k] {
                             return Tensors{uniform({rows, columns}, DType::f32, suite.device(), 90),
                                            apex::empty({rows, k}, DType::i64, suite.device()),
                                            apex::empty({rows, k}, DType::f32, suite.device())};
                           },
                       .run =
                           [k](const Tensors& t) {
                             kernels::topk(t[2].context(), t[2].view(), t[1].view(), in(t[0]), k, 1);
                             return t[2];
                           },
                       .want =
                           [k](const Tensors& t, std::int64_t i) {
                             auto row = values_of(views::narrow(t[0], 0, i / k, 1));
                             std::sort(row.rbegin(), row.rend());
                             return row[static_cast<std::size_t>(i % k)];
                           }});
}

void layer_rows(Suite& suite, const Matrix& m) {
  simple_row(suite, {.title = "log_softmax forward " + m.sizes,
                     .peer = "log_softmax " + m.words,
                     .ops = {Op::log_softmax},
                     .bytes = 2 * m.bytes,
                     .make =
                         [&suite, m] {
                           const Tensor x = uniform({m.rows, m.columns}, m.dtype, suite.device(), 91, -4, 4);
                           return Tensors{x, apex::empty_like(x)};
                         },
                     .run =
                         [](const Tensors& t) {
                           kernels::log_softmax(t[1].context(), t[1].view(), in(t[0]), 1);
                           return t[1];
                         },
                     .want =
                         [m](const Tensors& t, std::int64_t i) {
                           const auto row = values_of(views::narrow(t[0], 0, i / m.columns, 1));
                           double sum = 0;
                           for (const double v : row) sum += std::exp(v);
                           return row[static_cast<std::size_t>(i % m.columns)] - std::log(sum);
                         },
                     .relative = rounding_of(m.dtype),
                     .absolute = 1e-4});
  const std::int64_t n = suite.scaled(256, 64), c = 64, side = 56;
  const std::string shape = apex::concat(n, 'x', c, 'x', side, 'x', side, ' ', m.dtype);
  const std::string words = apex::concat(n, ' ', c, ' ', side, ' ', side, ' ', m.dtype);
  const double x_bytes = static_cast<double>(n * c * side * side) * static_cast<double>(apex::size_of(m.dtype));
  const auto pooled = [&](const char* name, Op op, const apex::Dims& out, auto run) {
    simple_row(suite,
               {.title = apex::concat(name, ' ', shape),
                .peer = apex::concat(name, ' ', words),
                .ops = {op},
                .bytes = x_bytes * (1 + static_cast<double>(out[2] * out[3]) / (side * side)),
                .make =
                    [=, &suite] {
                      return Tensors{
                          uniform({n, c, side, side}, m.dtype, suite.device(), 92, -1, 1, MemoryFormat::channels_last),
                          apex::empty(out, m.dtype, suite.device(), MemoryFormat::channels_last),
                          apex::empty(out, m.dtype, suite.device())};
                    },
                .run =
                    [run](const Tensors& t) {
                      run(t[1], t[0]);
                      return t[1];
                    },
                .want =
                    [=](const Tensors& t, std::int64_t i) {
                      const std::int64_t plane = i / (out[2] * out[3]), p = i % (out[2] * out[3]);
                      const std::int64_t step = side / out[2], h = p / out[3] * step, w = p % out[3] * step;
                      const Tensor image = views::select(views::select(t[0], 0, plane / c), 0, plane % c);
                      double sum = 0;
                      for (const double v : values_of(views::narrow(views::narrow(image, 0, h, step), 1, w, step)))
                        sum += v;
                      return sum / static_cast<double>(step * step);
                    },
                .relative = rounding_of(m.dtype),
                .absolute = 1e-5});
  };
  pooled("avg_pool2d", Op::avg_pool2d, {n, c, side / 2, side / 2},
         [](const Tensor& y, const Tensor& x) { kernels::avg_pool2d(y.context(), y.view(), in(x), {}); });
  pooled("adaptive_avg_pool2d", Op::adaptive_avg_pool2d, {n, c, 1, 1},
         [](const Tensor& y, const Tensor& x) { kernels::adaptive_avg_pool2d(y.context(), y.view(), in(x)); });
  simple_row(suite,
             {.title = "batch_norm evaluation " + shape,
              .peer = "batch_norm_eval " + words,
              .ops = {Op::batch_norm},
              .bytes = 2 * x_bytes,
              .make =
                  [=, &suite] {
                    return Tensors{uniform({n, c, side, side}, m.dtype, suite.device(), 93),
                                   apex::full({c}, 0.25, DType::f32, suite.device()),
                                   apex::full({c}, 0.5, DType::f32, suite.device())};
                  },
              .run =
                  [](const Tensors& t) {
                    return F::batch_norm(t[0], {.weight = t[2],
                                                .bias = t[1],
                                                .running_mean = t[1],
                                                .running_var = t[2],
                                                .training = false,
                                                .eps = 1e-5});
                  },
              .want = [](const Tensors& t,
                         std::int64_t i) { return (element(t[0], i) - 0.25) / std::sqrt(0.5 + 1e-5) * 0.5 + 0.25; },
              .relative = rounding_of(m.dtype),
              .absolute = 1e-5});
}

}  // namespace

void shape_rows(Suite& suite) {
  const Matrix m = matrix_of(suite);
  const std::int64_t rows = m.rows, columns = m.columns;
  const double twice = 2 * m.bytes;
  moving_row(
      suite, m, "reshape of a transposed matrix", {Op::reshape}, twice,
      [](const Tensor& x) {
        return F::reshape(views::transpose(x, 0, 1), {1, -1});
      },
      rows * columns, [=](std::int64_t, std::int64_t i) { return i % rows * columns + i / rows; });
  moving_row(
      suite, m, "permute and contiguous", {Op::permute, Op::contiguous}, twice,
      [](const Tensor& x) { return F::contiguous(F::transpose(x, 0, 1)); }, rows,
      [=](std::int64_t r, std::int64_t c) { return c * columns + r; });
  moving_row(
      suite, m, "narrow and copy", {Op::narrow}, m.bytes,
      [=](const Tensor& x) { return apex::clone(F::narrow(x, 1, 64, columns / 2)); }, columns / 2,
      [=](std::int64_t r, std::int64_t c) { return r * columns + c + 64; });
  moving_row(
      suite, m, "slice and copy", {Op::slice}, m.bytes,
      [=](const Tensor& x) { return apex::clone(F::slice(x, 0, 1, rows, 2)); }, columns,
      [=](std::int64_t r, std::int64_t c) { return (2 * r + 1) * columns + c; });
  moving_row(
      suite, m, "flip", {Op::flip}, twice, [](const Tensor& x) { return F::flip(x, {1}); }, columns,
      [=](std::int64_t r, std::int64_t c) { return r * columns + columns - 1 - c; });
  moving_row(
      suite, m, "pad", {Op::pad}, twice,
      [](const Tensor& x) {
        return F::pad(x, {{0, 0}, {32, 32}});
      },
      columns + 64,
      [=](std::int64_t r, std::int64_t c) { return c < 32 || c >= columns + 32 ? -1 : r * columns + c - 32; });
  moving_row(
      suite, m, "cat", {Op::cat}, 2 * twice,
      [](const Tensor& x) {
        return F::cat({x, x}, 1);
      },
      2 * columns, [=](std::int64_t r, std::int64_t c) { return r * columns + c % columns; });
  moving_row(
      suite, m, "expand and copy", {Op::expand}, m.bytes,
      [=](const Tensor& x) {
        return F::contiguous(F::expand(views::narrow(x, 0, 0, 1), {rows, columns}));
      },
      columns, [](std::int64_t, std::int64_t c) { return c; });
  transfer_row(suite);
}

void index_rows(Suite& suite) {
  const Matrix m = matrix_of(suite);
  table_rows(suite);
  place_rows(suite, m);
  order_rows(suite);
  layer_rows(suite, m);
}

}  // namespace bench
