// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../../device_offset.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

void check_probability(const char* op, double p) {
  if (!(p >= 0.0 && p <= 1.0)) fail(Kind::argument, concat(op, ": p = ", p, " is not in [0, 1]"));
}

/// x without what the draw leaves out. Linear in x and its own backward.
Tensor masked(const Tensor& x, double p, const detail::Draw& draw) {
  Tensor y = empty_like(x);
  kernels::dropout(x.context(), y.view(), View{}, x.view(), p, draw.state);
  return y;
}
Tensor gradient(const Tensor& dy, double p, const detail::Draw& draw) {
  return record_linear("dropout", masked(dy, p, draw), dy, [=](const Tensor& g) { return gradient(g, p, draw); });
}

}  // namespace

Tensor dropout(const Tensor& x_in, double p, bool training, Generator& generator) {
  Tensor x = x_in;
  OpScope op(Op::dropout, {&x});
  check_probability("dropout", p);
  if (!training || p == 0.0) return x;
  const detail::Draw draw = detail::draw_from(generator);
  return op.record(masked(x, p, draw), {x}, {},
                   [p, draw](const Tensor& dy) -> Gradients { return {gradient(dy, p, draw)}; });
}

Tensor dropout2d(const Tensor& x, double p, bool training, Generator& generator) {
  if (!x.defined() || x.dim() < 2)
    fail(Kind::argument,
         concat("dropout2d: x of sizes ", x.defined() ? to_string(x.sizes()) : "[undefined]", " is not [N, C, ...]"));
  check_probability("dropout2d", p);
  if (!training || p == 0.0) return x;
  const detail::Draw draw = detail::draw_from(generator);
  Dims channels = Dims::filled(x.dim(), 1);
  channels[0] = x.size(0);
  channels[1] = x.size(1);
  const Tensor keep = empty(channels, DType::boolean, x.device());
  kernels::bernoulli(keep.context(), keep.view(), 1.0 - p, draw.state);
  const Tensor zero = zeros({}, x.dtype(), x.device());
  return where(keep, p == 1.0 ? x : scale(x, 1.0 / (1.0 - p)), zero);
}

}  // namespace apex::nn::functional
