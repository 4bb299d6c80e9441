// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cmath>

#include "apex/core/philox.hpp"
#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

/// [..., m, k] times [..., k, n]; the leading dimensions broadcast.
Array product(const Array& a, const Array& b) {
  const int left_rank = a.sizes.size(), right_rank = b.sizes.size();
  Dims left = a.sizes, right = b.sizes;
  left[left_rank - 1] = b.sizes[right_rank - 1];
  right[right_rank - 2] = a.sizes[left_rank - 2];
  const Dims sizes = broadcast_shapes(left, right);
  const int rank = sizes.size();
  return array_of(sizes, [&](const Dims& index) {
    double sum = 0;
    Dims of_a = index, of_b = index;
    for (std::int64_t k = 0; k < a.sizes[left_rank - 1]; ++k) {
      of_a[rank - 1] = k;
      of_b[rank - 2] = k;
      sum += at(a, of_a) * at(b, of_b);
    }
    return sum;
  });
}

constexpr double kBeta = 0.5, kAlpha = -2;

/// beta input + alpha a b
Array product_and_sum(const Arrays& in, double beta) {
  const Array c = product(in[1], in[2]);
  return array_of(c.sizes, [&](const Dims& i) { return kAlpha * at(c, i) + (beta == 0 ? 0 : beta * at(in[0], i)); });
}

OpCase product_into(const char* what, double beta, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::baddbmm,
          .what = what,
          .operands = {{}, {}, {}},
          .shapes = std::move(shapes),
          .call = one([beta](const Inputs& in) { return F::baddbmm(in[0], in[1], in[2], beta, kAlpha); }),
          .reference = gives([beta](const Arrays& in) { return product_and_sum(in, beta); }),
          .terms = 20};
}

Array fully_connected(const Arrays& in) {
  Dims sizes = in[0].sizes;
  const int last = sizes.size() - 1;
  sizes[last] = in[1].sizes[0];
  return array_of(sizes, [&](const Dims& index) {
    double sum = in.size() > 2 ? in[2].values[static_cast<std::size_t>(index[last])] : 0;
    Dims from = index;
    for (from[last] = 0; from[last] < in[0].sizes[last]; ++from[last])
      sum += at(in[0], from) * at(in[1], {index[last], from[last]});
    return sum;
  });
}

Array convolution(const Arrays& in, const F::Conv2dOptions& o) {
  const Dims &x = in[0].sizes, &w = in[1].sizes;
  const auto out = [&](int i) {
    return (x[2 + i] + 2 * o.padding[i] - o.dilation[i] * (w[2 + i] - 1) - 1) / o.stride[i] + 1;
  };
  const std::int64_t per_group = w[0] / o.groups;
  return array_of({x[0], w[0], out(0), out(1)}, [&](const Dims& y) {
    double sum = in.size() > 2 ? in[2].values[static_cast<std::size_t>(y[1])] : 0;
    for_each_place({w[1], w[2], w[3]}, [&](const Dims& k, std::size_t) {
      const std::int64_t h = y[2] * o.stride[0] - o.padding[0] + k[1] * o.dilation[0];
      const std::int64_t v = y[3] * o.stride[1] - o.padding[1] + k[2] * o.dilation[1];
      if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) return;
      sum += at(in[0], {y[0], y[1] / per_group * w[1] + k[0], h, v}) * at(in[1], {y[1], k[0], k[1], k[2]});
    });
    return sum;
  });
}

OpCase convolved(const char* what, const F::Conv2dOptions& options, std::vector<std::vector<Dims>> shapes) {
  return {
      .op = Op::conv2d,
      .what = what,
      .operands = std::vector<Operand>(shapes.front().size()),
      .shapes = shapes,
      .call = one([=](const Inputs& in) { return F::conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), options); }),
      .reference = gives([=](const Arrays& in) { return convolution(in, options); }),
      .terms = 40};
}

/// Every output gathers what falls on it.
Array transposed_convolution(const Arrays& in, const F::ConvTranspose2dOptions& o) {
  const Dims &x = in[0].sizes, &w = in[1].sizes;
  const auto out = [&](int i) {
    return (x[2 + i] - 1) * o.stride[i] - 2 * o.padding[i] + o.dilation[i] * (w[2 + i] - 1) + o.output_padding[i] + 1;
  };
  const std::int64_t from_group = x[1] / o.groups;
  return array_of({x[0], w[1] * o.groups, out(0), out(1)}, [&](const Dims& y) {
    double sum = in.size() > 2 ? in[2].values[static_cast<std::size_t>(y[1])] : 0;
    for_each_place({from_group, w[2], w[3]}, [&](const Dims& k, std::size_t) {
      const std::int64_t h = y[2] + o.padding[0] - k[1] * o.dilation[0];
      const std::int64_t v = y[3] + o.padding[1] - k[2] * o.dilation[1];
      if (h < 0 || v < 0 || h % o.stride[0] != 0 || v % o.stride[1] != 0) return;
      const std::int64_t i = h / o.stride[0], j = v / o.stride[1];
      if (i >= x[2] || j >= x[3]) return;
      const std::int64_t c = y[1] / w[1] * from_group + k[0];
      sum += at(in[0], {y[0], c, i, j}) * at(in[1], {c, y[1] % w[1], k[1], k[2]});
    });
    return sum;
  });
}

OpCase turned(const char* what, const F::ConvTranspose2dOptions& options, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::conv_transpose2d,
          .what = what,
          .operands = std::vector<Operand>(shapes.front().size()),
          .shapes = shapes,
          .call = one([=](const Inputs& in) {
            return F::conv_transpose2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), options);
          }),
          .reference = gives([=](const Arrays& in) { return transposed_convolution(in, options); }),
          .terms = 40};
}

/// d sum(dy conv2d(x, w)) / dw for filters of these sizes; operands x, dy.
OpCase weight_gradient(const char* what, std::array<std::int64_t, 2> filter, const F::Conv2dOptions& o,
                       std::vector<std::vector<Dims>> shapes) {
  const auto sizes = [=](const Dims& x, const Dims& dy) { return Dims{dy[1], x[1] / o.groups, filter[0], filter[1]}; };
  return {
      .op = Op::conv2d_weight,
      .what = what,
      .operands = {{}, {}},
      .shapes = std::move(shapes),
      .call =
          one([=](const Inputs& in) { return F::conv2d_weight(in[0], sizes(in[0].sizes(), in[1].sizes()), in[1], o); }),
      .reference = gives([=](const Arrays& in) {
        const Dims &x = in[0].sizes, &y = in[1].sizes;
        const std::int64_t to_group = y[1] / o.groups, from_group = x[1] / o.groups;
        return array_of(sizes(x, y), [&](const Dims& w) {
          double sum = 0;
          for_each_place({y[0], y[2], y[3]}, [&](const Dims& p, std::size_t) {
            const std::int64_t h = p[1] * o.stride[0] - o.padding[0] + w[2] * o.dilation[0];
            const std::int64_t v = p[2] * o.stride[1] - o.padding[1] + w[3] * o.dilation[1];
            if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) return;
            sum += at(in[0], {p[0], w[0] / to_group * from_group + w[1], h, v}) * at(in[1], {p[0], w[0], p[1], p[2]});
          });
          return sum;
        });
      }),
      .terms = 40};
}

constexpr double kMean = 0.125, kVar = 0.75, kEps = 1e-3;  // of evaluation; exact in every type

/// (x - mean) / sqrt(var + eps) * weight + bias (+ residual); operands x, weight, bias, residual.
Array normalised(const Arrays& in, bool training, bool relu) {
  Dims kept, others{0};
  for (int d = 2; d < in[0].sizes.size(); ++d) others.push_back(d);
  const auto channels = groups_of(in[0], others, kept);
  std::vector<double> mean(channels.size(), kMean), var(channels.size(), kVar);
  for (std::size_t c = 0; training && c < channels.size(); ++c) {
    const auto n = static_cast<double>(channels[c].size());
    mean[c] = var[c] = 0;
    for (const double v : channels[c]) mean[c] += v / n;
    for (const double v : channels[c]) var[c] += (v - mean[c]) * (v - mean[c]) / n;
  }
  return array_of(in[0].sizes, [&](const Dims& i) {
    const auto c = static_cast<std::size_t>(i[1]);
    double y = (at(in[0], i) - mean[c]) / std::sqrt(var[c] + kEps) * in[1].values[c] + in[2].values[c];
    if (in.size() > 3) y += at(in[3], i);
    return relu ? std::max(y, 0.0) : y;
  });
}

OpCase normalisation(Op op, bool training, std::vector<Dims> inputs) {
  const bool residual = op == Op::batch_norm_add_relu, relu = op != Op::batch_norm;
  OpCase c{.op = op,
           .what = training ? "training" : "evaluation",
           .operands = {{.low = -2, .high = 2}, {.low = 0.5, .high = 1.5}, {}},
           .call = one([=](const Inputs& in) {
             F::BatchNormArguments a{.weight = in[1], .bias = in[2], .training = training, .eps = kEps};
             if (!training) {
               const DType dtype = accum_dtype(in[0].dtype());
               a.running_mean = test::full({in[0].size(1)}, kMean, dtype);
               a.running_var = test::full({in[0].size(1)}, kVar, dtype);
             }
             if (residual) return F::batch_norm_add_relu(in[0], in[3], a);
             return relu ? F::batch_norm_relu(in[0], a) : F::batch_norm(in[0], a);
           }),
           .reference = gives([=](const Arrays& in) { return normalised(in, training, relu); }),
           .terms = 60};
  for (const Dims& x : inputs) {
    c.shapes.push_back({x, {x[1]}, {x[1]}});
    if (residual) c.shapes.back().push_back(x);
  }
  if (residual) c.operands.emplace_back();
  return c;
}

/// A pooling by what it makes of the elements of a window and the size it had with padding.
OpCase pooled(Op op, const char* what, std::function<Tensor(const Tensor&)> f,
              std::function<std::pair<std::int64_t, std::int64_t>(int dim, std::int64_t out, std::int64_t size)> window,
              std::function<Dims(const Dims&)> sizes, bool largest, double divisor = 0) {
  return {.op = op,
          .what = what,
          .operands = {{}},
          .shapes = {{{2, 3, 5, 7}}, {{1, 2, 6, 5}}, {{0, 3, 5, 5}}},
          .call = one([f](const Inputs& in) { return f(in[0]); }),
          .reference = gives([=](const Arrays& in) {
            return array_of(sizes(in[0].sizes), [&](const Dims& y) {
              double sum = 0, most = -INFINITY, count = 0;
              const auto [top, bottom] = window(0, y[2], in[0].sizes[2]);
              const auto [left, right] = window(1, y[3], in[0].sizes[3]);
              for (std::int64_t h = std::max<std::int64_t>(0, top); h < std::min(bottom, in[0].sizes[2]); ++h)
                for (std::int64_t v = std::max<std::int64_t>(0, left); v < std::min(right, in[0].sizes[3]); ++v) {
                  const double x = at(in[0], {y[0], y[1], h, v});
                  sum += x;
                  most = std::max(most, x);
                  count += 1;
                }
              return largest ? most : sum / (divisor > 0 ? divisor : count);
            });
          }),
          .terms = 9};
}

/// The word of position e, from the layout of apex/kernels/random.hpp.
std::uint32_t word(std::uint64_t seed, std::uint64_t offset, std::uint64_t e) {
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const auto high = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };
  return Philox4x32::generate({{low(e / 4), high(e / 4), 0x80000000u, low(offset)}},
                              {{low(seed), high(seed) ^ high(offset)}})
      .v[e % 4];
}

OpCase dropped(double p) {
  return {.op = Op::dropout,
          .what = concat("p = ", p),
          .operands = {{}},
          .shapes = {{{3, 7}}, {{2, 3, 4, 5}}, {{0, 4}}},
          .call = one([p](const Inputs& in) {
            Generator generator{11, 3};
            return F::dropout(in[0], p, true, generator);
          }),
          .reference = gives([p](const Arrays& in) {
            Array out = in[0];
            for (std::size_t e = 0; e < out.values.size(); ++e)
              out.values[e] = word(11, 3, e) < std::round((1 - p) * 0x1p32) ? out.values[e] / (1 - p) : 0;
            return out;
          })};
}

}  // namespace

std::vector<OpCase> layer_cases() {
  const auto halves = [](const Dims& x) { return Dims{x[0], x[1], (x[2] + 1) / 2, (x[3] + 1) / 2}; };
  const auto three_by_two = [](int, std::int64_t out, std::int64_t) { return std::pair{2 * out - 1, 2 * out + 2}; };
  return {
      {.op = Op::matmul,
       .operands = {{}, {}},
       .shapes = {{{3, 5}, {5, 7}},
                  {{2, 3, 5}, {2, 5, 4}},
                  {{1, 3, 5}, {2, 5, 3}},
                  {{2, 1, 3, 5}, {3, 5, 2}},
                  {{2, 3, 3, 5}, {5, 2}},
                  {{0, 5}, {5, 4}},
                  {{3, 0}, {0, 4}}},
       .call = one([](const Inputs& in) { return F::matmul(in[0], in[1]); }),
       .reference = gives([](const Arrays& in) { return product(in[0], in[1]); }),
       .terms = 20},
      product_into("input of the product's sizes", kBeta,
                   {{{2, 3, 4}, {2, 3, 5}, {2, 5, 4}},
                    {{3, 7}, {3, 5}, {5, 7}},
                    {{2, 3, 3, 4}, {2, 3, 3, 5}, {2, 3, 5, 4}},
                    {{0, 3, 4}, {0, 3, 5}, {0, 5, 4}},
                    {{2, 3, 4}, {2, 3, 0}, {2, 0, 4}}}),
      product_into("input that is repeated", kBeta,
                   {{{3, 1}, {2, 3, 5}, {5, 4}}, {{4}, {2, 1, 3, 5}, {3, 5, 4}}, {{}, {3, 5}, {5, 7}}}),
      product_into("input that is not read", 0, {{{3, 7}, {3, 5}, {5, 7}}, {{7}, {2, 3, 5}, {2, 5, 7}}}),
      {.op = Op::linear,
       .operands = {{}, {}, {}},
       .shapes = {{{3, 5}, {7, 5}, {7}}, {{2, 3, 5}, {4, 5}, {4}}, {{5}, {3, 5}, {3}}, {{0, 5}, {4, 5}, {4}}},
       .call = one([](const Inputs& in) { return F::linear(in[0], in[1], in[2]); }),
       .reference = gives(fully_connected),
       .terms = 20},
      {.op = Op::linear,
       .what = "no bias",
       .operands = {{}, {}},
       .shapes = {{{3, 5}, {7, 5}}},
       .call = one([](const Inputs& in) { return F::linear(in[0], in[1]); }),
       .reference = gives(fully_connected),
       .terms = 20},
      convolved(
          "strided", {.stride = {2, 1}, .padding = {1, 0}},
          {{{2, 3, 5, 4}, {4, 3, 3, 2}, {4}}, {{1, 3, 7, 5}, {5, 3, 3, 3}, {5}}, {{0, 3, 5, 4}, {4, 3, 3, 2}, {4}}}),
      convolved("grouped", {.padding = {1, 1}, .dilation = {1, 2}, .groups = 2}, {{{2, 4, 3, 5}, {6, 2, 3, 3}}}),
      turned("strided", {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}},
             {{{2, 3, 3, 2}, {3, 2, 3, 2}, {2}}, {{1, 5, 3, 3}, {5, 3, 4, 4}, {3}}, {{0, 3, 3, 2}, {3, 2, 3, 2}, {2}}}),
      turned("grouped", {.padding = {0, 1}, .dilation = {1, 2}, .groups = 2}, {{{2, 4, 3, 3}, {4, 3, 3, 3}}}),
      turned("depthwise", {.stride = {2, 2}, .padding = {1, 1}, .groups = 3}, {{{2, 3, 3, 2}, {3, 1, 4, 4}, {3}}}),
      weight_gradient("strided", {3, 2}, {.stride = {2, 1}, .padding = {1, 0}},
                      {{{2, 3, 5, 4}, {2, 4, 3, 3}}, {{1, 3, 7, 5}, {1, 5, 4, 4}}, {{0, 3, 5, 4}, {0, 4, 3, 3}}}),
      weight_gradient("grouped, a row of x unused", {2, 2}, {.stride = {2, 1}, .dilation = {1, 2}, .groups = 2},
                      {{{2, 4, 5, 5}, {2, 6, 2, 3}}}),
      normalisation(Op::batch_norm, true, {{3, 2, 3, 4}, {5, 3}, {3, 2, 7}, {0, 2, 3, 3}}),
      normalisation(Op::batch_norm, false, {{3, 2, 3, 4}, {5, 3}, {0, 2, 3, 3}}),
      normalisation(Op::batch_norm_relu, true, {{3, 2, 3, 3}, {5, 3}, {0, 2, 3, 3}}),
      normalisation(Op::batch_norm_relu, false, {{3, 2, 3, 3}}),
      normalisation(Op::batch_norm_add_relu, true, {{3, 2, 3, 3}, {5, 3}, {0, 2, 3, 3}}),
      normalisation(Op::batch_norm_add_relu, false, {{3, 2, 3, 3}}),
      pooled(
          Op::max_pool2d, "3 by 2",
          [](const Tensor& x) {
            return F::max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
          },
          three_by_two, halves, true),
      pooled(
          Op::avg_pool2d, "3 by 2",
          [](const Tensor& x) {
            return F::avg_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
          },
          three_by_two, halves, false, 9),
      pooled(
          Op::adaptive_avg_pool2d, "to 2 by 3",
          [](const Tensor& x) {
            return F::adaptive_avg_pool2d(x, {2, 3});
          },
          [](int dim, std::int64_t out, std::int64_t size) {
            const std::int64_t of = dim == 0 ? 2 : 3;
            return std::pair{out * size / of, ((out + 1) * size + of - 1) / of};
          },
          [](const Dims& x) {
            return Dims{x[0], x[1], 2, 3};
          },
          false),
      dropped(0.5),
      dropped(0.25),
  };
}

}  // namespace apex::test
