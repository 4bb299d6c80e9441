// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"

#include <functional>

#include "common.hpp"

namespace apex::nn::functional {

namespace {

/// What a kind of convolution is made of.
template <class Options>
struct Passes {
  Op op;
  Dims (*output_sizes)(const Dims& x, const Dims& w, const Options&);
  void (*forward)(const Context&, View y, ConstView x, ConstView w, ConstView bias, const Options&);
  void (*backward_data)(const Context&, View dx, ConstView dy, ConstView w, const Options&);
  void (*backward_weight)(const Context&, View dw, View db, ConstView dy, ConstView x, const Options&);
};

constexpr Passes<Conv2dOptions> kPlain{Op::conv2d, kernels::conv2d_output_sizes, kernels::conv2d_forward,
                                       kernels::conv2d_backward_data, kernels::conv2d_backward_weight};
constexpr Passes<ConvTranspose2dOptions> kTransposed{
    Op::conv_transpose2d, kernels::conv_transpose2d_output_sizes, kernels::conv_transpose2d_forward,
    kernels::conv_transpose2d_backward_data, kernels::conv_transpose2d_backward_weight};

/// Gradients made of recorded ops, for derivatives of their own. These two give that of the input, of sizes xs.
Tensor data_gradient(const Tensor& dy, const Tensor& w, const Dims& xs, const Conv2dOptions& o) {
  ConvTranspose2dOptions back{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
  const Dims least = kernels::conv_transpose2d_output_sizes(dy.sizes(), w.sizes(), back);
  for (int i = 0; i < 2; ++i) back.output_padding[static_cast<std::size_t>(i)] = xs[2 + i] - least[2 + i];
  return conv_transpose2d(dy, w, {}, back);
}
Tensor data_gradient(const Tensor& dy, const Tensor& w, const Dims& xs, const ConvTranspose2dOptions& o) {
  Tensor dx = conv2d(dy, w, {}, {.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups});
  for (int d = 2; d < 4; ++d)
    if (dx.size(d) != xs[d]) dx = narrow(dx, d, 0, xs[d]);  // output_padding holds whole strides
  return dx;
}

template <class Options>
Tensor convolve(const Passes<Options>& passes, Tensor x, Tensor weight, Tensor bias, const Options& options);

template <class Options>
Tensor weight_gradient(const Passes<Options>& passes, Tensor x, Tensor dy, const Dims& sizes, MemoryFormat format,
                       const Options& options) {
  OpScope op(Op::conv2d_weight, {&x, &dy});
  if (!dy.defined()) fail(Kind::argument, concat(op.row().name, ": dy is an undefined tensor"));
  Tensor dw = empty(sizes, x.dtype(), x.device(), format);
  const Tensor image = dense(x), gradient = dense(dy);
  passes.backward_weight(x.context(), dw.view(), {}, gradient.view(), image.view(), options);
  return op.record(dw, {x, dy}, {{"x", x}, {"dy", dy}},
                   [&passes, x, dy, options](const Tensor& g, std::span<const bool> needs) -> Gradients {
                     return {needs[0] ? data_gradient(dy, g, x.sizes(), options) : Tensor(),
                             needs[1] ? convolve(passes, x, g, {}, options) : Tensor()};
                   });
}

template <class Options>
Tensor convolve(const Passes<Options>& passes, Tensor x, Tensor weight, Tensor bias, const Options& options) {
  OpScope op(passes.op, {&x, &weight, &bias});
  if (!weight.defined()) fail(Kind::argument, concat(op.row().name, ": the weight is an undefined tensor"));
  const Tensor image = dense(x), kernel = dense(weight), shift = bias.defined() ? dense(bias) : Tensor();
  const MemoryFormat format = image.memory_format();
  Tensor y = empty(passes.output_sizes(image.sizes(), kernel.sizes(), options), x.dtype(), x.device(), format);
  passes.forward(x.context(), y.view(), image.view(), kernel.view(), shift.view(), options);
  return op.record(y, {x, weight, bias}, {{"x", x}, {"weight", weight}},
                   [&passes, x, weight, options, format](const Tensor& dy_in, std::span<const bool> needs) {
                     Gradients g(3);
                     if (grad_mode()) {
                       if (needs[0]) g[0] = data_gradient(dy_in, weight, x.sizes(), options);
                       if (needs[1])
                         g[1] = weight_gradient(passes, x, dy_in, weight.sizes(), weight.memory_format(), options);
                       if (needs[2]) g[2] = sum(dy_in, {0, 2, 3});
                       return g;
                     }
                     const Tensor dy = with_format(dy_in, format), in = dense(x), taps = dense(weight);
                     if (needs[1]) g[1] = empty_like(taps);
                     if (needs[2]) g[2] = empty({dy.size(1)}, taps.dtype(), taps.device());
                     if (needs[1] || needs[2])
                       passes.backward_weight(dy.context(), g[1].view(), g[2].view(), dy.view(), in.view(), options);
                     if (needs[0]) {
                       g[0] = empty_like(in);
                       passes.backward_data(dy.context(), g[0].view(), dy.view(), taps.view(), options);
                     }
                     return g;
                   });
}

/// [a, b, length] as an image of one row.
Tensor as_row(const Tensor& t) { return reshape(t, {t.size(0), t.size(1), 1, t.size(2)}); }

/// The arguments of an op on sequences, before its twin on images sees them under another name and in other sizes.
/// @param sizes  of its output, or an error under its own name
void check_sequence(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const std::function<Dims()>& sizes) {
  if (!x.defined() || !weight.defined()) fail(Kind::argument, concat(op, ": x or weight is an undefined tensor"));
  const std::int64_t channels = sizes()[1];
  const auto check = [&](const char* name, const Tensor& t) {
    if (t.device() != x.device())
      fail(Kind::argument, concat(op, ": ", name, " is on ", t.device(), ", x is on ", x.device()));
    if (t.dtype() != x.dtype()) fail(Kind::argument, concat(op, ": ", name, " is ", t.dtype(), ", wanted ", x.dtype()));
  };
  check("weight", weight);
  if (!bias.defined()) return;
  check("bias", bias);
  if (bias.sizes() != Dims{channels})
    fail(Kind::argument, concat(op, ": bias has sizes ", bias.sizes(), ", wanted [", channels, ']'));
}

/// An op on sequences by its twin on images of one row.
template <class F>
Tensor on_rows(const Tensor& x, const Tensor& weight, F&& twin) {
  const Tensor y = twin(as_row(x), as_row(weight));
  return reshape(y, {y.size(0), y.size(1), y.size(3)});
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  return convolve(kPlain, x, weight, bias, options);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  return convolve(kTransposed, x, weight, bias, options);
}

Tensor conv2d_weight(const Tensor& x, const Dims& sizes, const Tensor& dy, const Conv2dOptions& options) {
  return weight_gradient(kPlain, x, dy, sizes, MemoryFormat::contiguous, options);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  check_sequence("conv1d", x, weight, bias, [&] {
    return kernels::conv_output_sizes(x.sizes(), weight.sizes(),
                                      {.op = "conv1d",
                                       .stride = {&o.stride, 1},
                                       .padding = {&o.padding, 1},
                                       .dilation = {&o.dilation, 1},
                                       .groups = o.groups});
  });
  return on_rows(x, weight, [&](const Tensor& rows, const Tensor& taps) {
    return conv2d(
        rows, taps, bias,
        {.stride = {1, o.stride}, .padding = {0, o.padding}, .dilation = {1, o.dilation}, .groups = o.groups});
  });
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTranspose1dOptions& o) {
  check_sequence("conv_transpose1d", x, weight, bias, [&] {
    return kernels::conv_transpose_output_sizes(x.sizes(), weight.sizes(),
                                                {.op = "conv_transpose1d",
                                                 .stride = {&o.stride, 1},
                                                 .padding = {&o.padding, 1},
                                                 .dilation = {&o.dilation, 1},
                                                 .output_padding = {&o.output_padding, 1},
                                                 .groups = o.groups});
  });
  return on_rows(x, weight, [&](const Tensor& rows, const Tensor& taps) {
    return conv_transpose2d(rows, taps, bias,
                            {.stride = {1, o.stride},
                             .padding = {0, o.padding},
                             .output_padding = {0, o.output_padding},
                             .dilation = {1, o.dilation},
                             .groups = o.groups});
  });
}

}  // namespace apex::nn::functional
