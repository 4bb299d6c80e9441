// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The convolutions of ResNet-50 v1.5 at 224 pixels, channels-last, summed over all layers; one grouped, one depthwise
// and one dilated layer of other networks; the transposed convolutions of a DCGAN's generator.
#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/kernels/backend.hpp"
#include "apex/kernels/conv.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::Dims;
using apex::DType;
using apex::MemoryFormat;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace views = apex::views;

/// A square convolution. A transposed one is given as the convolution it turns round: `side` and c are its output's.
struct Layer {
  std::int64_t c, k, r, stride, side;
  int count;
  std::int64_t padding = r / 2, dilation = 1, groups = 1;
  bool transposed = false;

  std::int64_t out() const { return (side + 2 * padding - dilation * (r - 1) - 1) / stride + 1; }
  std::int64_t c_group() const { return c / groups; }
  std::int64_t k_group() const { return k / groups; }
};
// 52 layers: what a block repeats is counted.
constexpr Layer kLayers[] = {
    {64, 64, 1, 1, 56, 1},    {64, 64, 3, 1, 56, 3},    {64, 256, 1, 1, 56, 4},   {256, 64, 1, 1, 56, 2},
    {256, 128, 1, 1, 56, 1},  {128, 128, 3, 2, 56, 1},  {128, 512, 1, 1, 28, 4},  {256, 512, 1, 2, 56, 1},
    {512, 128, 1, 1, 28, 3},  {128, 128, 3, 1, 28, 3},  {512, 256, 1, 1, 28, 1},  {256, 256, 3, 2, 28, 1},
    {256, 1024, 1, 1, 14, 6}, {512, 1024, 1, 2, 28, 1}, {1024, 256, 1, 1, 14, 5}, {256, 256, 3, 1, 14, 5},
    {1024, 512, 1, 1, 14, 1}, {512, 512, 3, 2, 14, 1},  {512, 2048, 1, 1, 7, 3},  {1024, 2048, 1, 2, 14, 1},
    {2048, 512, 1, 1, 7, 2},  {512, 512, 3, 1, 7, 2},
};
constexpr Layer kStem{3, 64, 7, 2, 224, 1};
constexpr Layer kGrouped{128, 128, 3, 1, 56, 1, 1, 1, 32};     // ResNeXt-50 32x4d
constexpr Layer kDepthwise{144, 144, 3, 1, 56, 1, 1, 1, 144};  // MobileNet v2
constexpr Layer kDilated{512, 512, 3, 1, 28, 1, 2, 2};         // DeepLab
// Radford et al. 2016 (arXiv:1511.06434), 64 pixels, 100 inputs, as examples/dcgan of Apex builds it.
constexpr Layer kGenerator[] = {
    {512, 100, 4, 1, 4, 1, 0, 1, 1, true},  {256, 512, 4, 2, 8, 1, 1, 1, 1, true},
    {128, 256, 4, 2, 16, 1, 1, 1, 1, true}, {64, 128, 4, 2, 32, 1, 1, 1, 1, true},
    {3, 64, 4, 2, 64, 1, 1, 1, 1, true},
};

enum class Pass { forward, data, weight };
const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::data: return "data gradient";
    case Pass::weight: return "weight gradient";
  }
  return "";
}

/// A convolution's weight gradient is an op of its own too.
std::vector<apex::Op> ops_of(Pass pass) {
  if (pass == Pass::weight) return {apex::Op::conv2d, apex::Op::conv2d_weight};
  return {apex::Op::conv2d};
}

ConstView in(const Tensor& t) { return ConstView(t.view()); }

/// One layer's tensors, and single results of its three passes worked out in double.
struct Problem {
  Layer l;
  std::int64_t n, out;
  kernels::Conv2dOptions options;
  Tensor x, w, y;  // in a gradient pass y holds dy, and x or w the result

  double forward_at(std::int64_t i, std::int64_t k, std::int64_t p, std::int64_t q) const {
    const auto image = values_of(views::select(x, 0, i)), filter = values_of(views::select(w, 0, k));
    const std::int64_t first = k / l.k_group() * l.c_group();
    double sum = 0;
    for (std::int64_t c = 0; c < l.c_group(); ++c)
      each_tap(p, q, [&](std::int64_t h, std::int64_t v, std::int64_t tap) {
        sum += image[static_cast<std::size_t>(((first + c) * l.side + h) * l.side + v)] *
               filter[static_cast<std::size_t>(c * l.r * l.r + tap)];
      });
    return sum;
  }
  double data_at(std::int64_t i, std::int64_t c, std::int64_t h, std::int64_t v) const {
    const auto image = values_of(views::select(y, 0, i)), filter = values_of(views::narrow(w, 1, c % l.c_group(), 1));
    const std::int64_t first = c / l.c_group() * l.k_group();
    double sum = 0;
    for (std::int64_t k = first; k < first + l.k_group(); ++k)
      for (std::int64_t r = 0; r < l.r; ++r)
        for (std::int64_t s = 0; s < l.r; ++s) {
          const std::int64_t a = h + l.padding - r * l.dilation, b = v + l.padding - s * l.dilation;
          if (a % l.stride != 0 || b % l.stride != 0) continue;
          const std::int64_t p = a / l.stride, q = b / l.stride;
          if (a < 0 || b < 0 || p >= out || q >= out) continue;
          sum += image[static_cast<std::size_t>((k * out + p) * out + q)] *
                 filter[static_cast<std::size_t>((k * l.r + r) * l.r + s)];
        }
    return sum;
  }
  double weight_at(std::int64_t k, std::int64_t c, std::int64_t tap) const {
    const auto xs = values_of(views::narrow(x, 1, k / l.k_group() * l.c_group() + c, 1)),
               ds = values_of(views::narrow(y, 1, k, 1));
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t p = 0; p < out; ++p)
        for (std::int64_t q = 0; q < out; ++q)
          each_tap(p, q, [&](std::int64_t h, std::int64_t v, std::int64_t at) {
            if (at == tap)
              sum += xs[static_cast<std::size_t>((i * l.side + h) * l.side + v)] *
                     ds[static_cast<std::size_t>((i * out + p) * out + q)];
          });
    return sum;
  }

 private:
  template <class F>
  void each_tap(std::int64_t p, std::int64_t q, F&& f) const {
    for (std::int64_t r = 0; r < l.r; ++r)
      for (std::int64_t s = 0; s < l.r; ++s) {
        const std::int64_t h = p * l.stride + r * l.dilation - l.padding, v = q * l.stride + s * l.dilation - l.padding;
        if (h >= 0 && v >= 0 && h < l.side && v < l.side) f(h, v, r * l.r + s);
      }
  }
};

double at(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  Tensor one = t;
  int dim = 0;
  for (const std::int64_t i : {a, b, c, d}) one = views::narrow(one, dim++, i, 1);
  return values_of(one)[0];
}

void run(const Problem& p, Pass pass) {
  const apex::Context ctx = p.x.context();
  if (p.l.transposed) {  // from y to x
    const kernels::ConvTranspose2dOptions o{
        .stride = p.options.stride, .padding = p.options.padding, .dilation = p.options.dilation, .groups = p.l.groups};
    switch (pass) {
      case Pass::forward: return kernels::conv_transpose2d_backward_data(ctx, p.y.view(), in(p.x), in(p.w), o);
      case Pass::data: return kernels::conv_transpose2d_forward(ctx, p.x.view(), in(p.y), in(p.w), {}, o);
      case Pass::weight: return kernels::conv_transpose2d_backward_weight(ctx, p.w.view(), {}, in(p.x), in(p.y), o);
    }
  }
  switch (pass) {
    case Pass::forward: return kernels::conv2d_forward(ctx, p.y.view(), in(p.x), in(p.w), {}, p.options);
    case Pass::data: return kernels::conv2d_backward_data(ctx, p.x.view(), in(p.y), in(p.w), p.options);
    case Pass::weight: return kernels::conv2d_backward_weight(ctx, p.w.view(), {}, in(p.y), in(p.x), p.options);
  }
}

/// `pass` is that of the convolution; a transposed one's forward is Pass::data.
Work make(const Suite& suite, const Layer& l, std::int64_t n, DType dtype, Pass pass) {
  const std::int64_t out = l.out(), taps = l.r * l.r;
  Problem problem{l,
                  n,
                  out,
                  {.stride = {l.stride, l.stride},
                   .padding = {l.padding, l.padding},
                   .dilation = {l.dilation, l.dilation},
                   .groups = l.groups},
                  {},
                  {},
                  {}};
  const auto tensor = [&](std::uint64_t seed, const Dims& sizes) {
    return uniform(sizes, dtype, suite.device(), seed, -1, 1, MemoryFormat::channels_last);
  };
  problem.x = tensor(50, {n, l.c, l.side, l.side});
  problem.w = tensor(51, {l.k, l.c_group(), l.r, l.r});
  problem.y = tensor(52, {n, l.k, out, out});
  Work work{.unit = Unit::flops,
            .amount = 2.0 * static_cast<double>(n * l.k * out * out) * static_cast<double>(l.c_group() * taps)};
  const double terms = static_cast<double>(pass == Pass::forward ? l.c_group() * taps
                                           : pass == Pass::data  ? l.k_group() * taps
                                                                 : n * out * out);
  const double relative = rounding_of(dtype), absolute = 1e-4 * std::sqrt(terms);
  work.run = [problem, pass] { run(problem, pass); };
  work.check = [=](Check& check) {
    const Problem& p = problem;
    if (pass == Pass::forward) {
      check.near("y", 0, at(p.y, 0, 0, 0, 0), p.forward_at(0, 0, 0, 0), relative, absolute);
      check.near("y", 1, at(p.y, n - 1, l.k - 1, out / 2, out - 1), p.forward_at(n - 1, l.k - 1, out / 2, out - 1),
                 relative, absolute);
    } else if (pass == Pass::data) {
      check.near("dx", 0, at(p.x, 0, 0, 0, 0), p.data_at(0, 0, 0, 0), relative, absolute);
      check.near("dx", 1, at(p.x, n - 1, l.c - 1, l.side / 2, l.side - 1),
                 p.data_at(n - 1, l.c - 1, l.side / 2, l.side - 1), relative, absolute);
    } else {
      const std::int64_t last = l.r - 1;
      check.near("dw", 0, at(p.w, 0, 0, 0, 0), p.weight_at(0, 0, 0), relative, absolute);
      check.near("dw", 1, at(p.w, l.k - 1, l.c_group() - 1, last, last),
                 p.weight_at(l.k - 1, l.c_group() - 1, last * l.r + last), relative, absolute);
    }
  };
  return work;
}

std::string request(const Layer& l, std::int64_t n, DType dtype, Pass pass) {
  const char* names[] = {"conv_fwd", "conv_dgrad", "conv_wgrad"};
  return apex::concat(names[static_cast<int>(pass)], ' ', n, ' ', l.c, ' ', l.side, ' ', l.side, ' ', l.k, ' ', l.r,
                      ' ', l.stride, ' ', l.padding, ' ', l.dilation, ' ', l.groups, ' ', l.transposed ? 1 : 0, ' ',
                      dtype);
}

}  // namespace

void convolution_rows(Suite& suite) {
  kernels::set_plan_choice(kernels::PlanChoice::timed);
  const std::int64_t n = suite.scaled(256, 64);
  for (const DType dtype : work_dtypes(suite)) {
    for (const Pass pass : {Pass::forward, Pass::data, Pass::weight}) {
      std::vector<Suite::Part> parts;
      for (const Layer& l : kLayers)
        parts.push_back({l.count, request(l, n, dtype, pass),
                         [&suite, l, n, dtype, pass] { return make(suite, l, n, dtype, pass); }});
      suite.sum_row(apex::concat("ResNet-50, 52 convolutions ", name_of(pass), ", batch ", n, ' ', dtype), parts,
                    ops_of(pass));
    }
    for (const Pass pass : {Pass::forward, Pass::weight})
      suite.row(
          apex::concat("ResNet-50, stem 7x7 ", name_of(pass), ", batch ", n, ' ', dtype),
          request(kStem, n, dtype, pass), [&] { return make(suite, kStem, n, dtype, pass); }, ops_of(pass));
    for (const auto& [title, l] : {std::pair{"grouped 3x3, 32 groups of 4 of 128 channels, 56 pixels", kGrouped},
                                   {"depthwise 3x3, 144 channels, 56 pixels", kDepthwise},
                                   {"dilated 3x3 by 2, 512 channels, 28 pixels", kDilated}})
      for (const Pass pass : {Pass::forward, Pass::data, Pass::weight})
        suite.row(
            apex::concat(title, ' ', name_of(pass), ", batch ", n / 4, ' ', dtype), request(l, n / 4, dtype, pass),
            [&suite, l = l, n, dtype, pass] { return make(suite, l, n / 4, dtype, pass); }, ops_of(pass));
    for (const auto& [title, pass] :
         {std::pair{"forward", Pass::data}, {"data gradient", Pass::forward}, {"weight gradient", Pass::weight}}) {
      std::vector<Suite::Part> parts;
      for (const Layer& l : kGenerator)
        parts.push_back({l.count, request(l, n, dtype, pass),
                         [&suite, l, n, dtype, pass = pass] { return make(suite, l, n, dtype, pass); }});
      suite.sum_row(apex::concat("DCGAN, 5 transposed convolutions ", title, ", batch ", n, ' ', dtype), parts,
                    {apex::Op::conv_transpose2d});
    }
  }
}

}  // namespace bench
