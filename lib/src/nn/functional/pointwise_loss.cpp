// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>

#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/loss.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

using kernels::LossKind;
using kernels::PointwiseLoss;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a loss compares. Weights may be undefined.
struct Pair {
  Tensor x, target, weight, pos_weight;
};

Tensor weighted(const Tensor& value, const Tensor& weight) { return weight.defined() ? mul(value, weight) : value; }
Tensor one_minus(const Tensor& t) { return scale(t, -1.0, 1.0); }

/// ln t, cut off at -100 by an argument that is not smaller than e^-100, so that no derivative is infinite.
Tensor cut_log(const Tensor& t) { return log(clamp(t, std::exp(-100.0), kInfinity)); }

/// d loss / d x for each pair, out of differentiable ops.
Tensor slope_by_x(const PointwiseLoss& o, const Pair& in) {
  const Tensor &x = in.x, &t = in.target;
  switch (o.kind) {
    case LossKind::mse: return scale(sub(x, t), 2.0);
    case LossKind::l1: return sign_of(sub(x, t).detach());
    case LossKind::smooth_l1:
      if (o.delta == 0.0) return sign_of(sub(x, t).detach());
      return clamp(scale(sub(x, t), 1.0 / o.delta), -1.0, 1.0);
    case LossKind::huber: return clamp(sub(x, t), -o.delta, o.delta);
    case LossKind::bce: return weighted(div(sub(x, t), clamp(mul(x, one_minus(x)), 1e-12, kInfinity)), in.weight);
    case LossKind::bce_with_logits: {
      const Tensor positives = weighted(t, in.pos_weight);
      return weighted(sub(mul(one_minus(t), sigmoid(x)), mul(positives, sigmoid(neg(x)))), in.weight);
    }
    case LossKind::kl_div: return neg(o.log_target ? exp(t) : t);
  }
  fail(Kind::unsupported, concat(name_of(o.kind), " is not twice differentiable"));
}

Tensor slope_by_target(const PointwiseLoss& o, const Pair& in) {
  const Tensor &x = in.x, &t = in.target;
  switch (o.kind) {
    case LossKind::bce: return weighted(sub(cut_log(one_minus(x)), cut_log(x)), in.weight);
    case LossKind::bce_with_logits: {
      const Tensor up = softplus(neg(x), 1.0, kInfinity), down = softplus(x, 1.0, kInfinity);
      return weighted(sub(weighted(up, in.pos_weight), down), in.weight);
    }
    case LossKind::kl_div: {
      const Tensor zero = zeros({}, t.dtype(), t.device()), one = ones({}, t.dtype(), t.device());
      if (o.log_target) {
        const Tensor p = exp(t);
        return mul(p, where(where_above(p, 0.0), scale(sub(t, x), 1.0, 1.0), zero));
      }
      const Tensor positive = where_above(t, 0.0);  // a logarithm of 0 has no derivative, also where it is not used
      return where(positive, scale(sub(log(where(positive, t, one)), x), 1.0, 1.0), zero);
    }
    default: return neg(slope_by_x(o, in));
  }
}

/// In the loss' type, rounded once.
Gradients differentiable_backward(const PointwiseLoss& o, const Tensor& dloss, const Pair& in,
                                  std::span<const bool> needs) {
  const auto wide = [&](const Tensor& t) { return t.defined() ? cast(t, dloss.dtype()) : t; };
  const Pair pair{wide(in.x), wide(in.target), wide(in.weight), wide(in.pos_weight)};
  const double count = static_cast<double>(in.x.numel());
  const Tensor g = o.reduction == Reduction::mean ? scale(dloss, 1.0 / count) : dloss;
  Gradients out(2);
  if (needs[0]) out[0] = cast(mul(slope_by_x(o, pair), g), in.x.dtype());
  if (needs[1]) out[1] = cast(mul(slope_by_target(o, pair), g), in.x.dtype());
  return out;
}

void check_constant(const char* op, const char* name, const Tensor& t) {
  if (t.defined() && grad_mode() && requires_grad(t))
    fail(Kind::unsupported, concat(op, ": ", name, " takes no gradient; give it detached"));
}

Tensor pointwise(Op which, const PointwiseLoss& o, Pair in) {
  OpScope op(which, {&in.x, &in.target, &in.weight, &in.pos_weight});
  if (!in.target.defined()) fail(Kind::argument, concat(op.row().name, ": the target is an undefined tensor"));
  check_constant(op.row().name, "weight", in.weight);
  check_constant(op.row().name, "pos_weight", in.pos_weight);
  const DType wide = accum_dtype(in.x.dtype());
  Tensor loss = o.reduction == Reduction::none ? empty_like(in.x, wide) : empty({}, wide, in.x.device());
  kernels::pointwise_loss(loss.context(), loss.view(), in.x.view(), in.target.view(), in.weight.view(),
                          in.pos_weight.view(), o);
  return op.record(loss, {in.x, in.target},
                   {{"x", in.x}, {"target", in.target}, {"weight", in.weight}, {"pos_weight", in.pos_weight}},
                   [o, in](const Tensor& dloss, std::span<const bool> needs) -> Gradients {
                     if (grad_mode()) return differentiable_backward(o, dloss, in, needs);
                     Gradients out(2);
                     if (needs[0]) out[0] = empty_like(in.x);
                     if (needs[1]) out[1] = empty_like(in.target);
                     kernels::pointwise_loss_backward(dloss.context(), out[0].view(), out[1].view(), dloss.view(),
                                                      in.x.view(), in.target.view(), in.weight.view(),
                                                      in.pos_weight.view(), o);
                     return out;
                   });
}

/// From the total weight of the forward pass.
Tensor nll_gradient(const Tensor& dloss, const Tensor& x, const Tensor& labels, const Tensor& total,
                    const NllLossOptions& o) {
  Tensor dx = empty_like(x);
  kernels::nll_loss_backward(dloss.context(), dx.view(), dloss.view(), labels.view(), o.weight.view(), total.view(),
                             {o.ignore_index, o.reduction});
  return record_linear("nll_loss", dx, dloss, [=](const Tensor& g) { return nll_loss(g, labels, o); });
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return pointwise(Op::mse_loss, {.kind = LossKind::mse, .reduction = reduction}, {x, target});
}
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return pointwise(Op::l1_loss, {.kind = LossKind::l1, .reduction = reduction}, {x, target});
}
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta, Reduction reduction) {
  return pointwise(Op::smooth_l1_loss, {.kind = LossKind::smooth_l1, .reduction = reduction, .delta = beta},
                   {x, target});
}
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, Reduction reduction) {
  return pointwise(Op::huber_loss, {.kind = LossKind::huber, .reduction = reduction, .delta = delta}, {x, target});
}
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BceOptions& o) {
  return pointwise(Op::binary_cross_entropy, {.kind = LossKind::bce, .reduction = o.reduction}, {x, target, o.weight});
}
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const BceWithLogitsOptions& o) {
  return pointwise(Op::binary_cross_entropy_with_logits, {.kind = LossKind::bce_with_logits, .reduction = o.reduction},
                   {x, target, o.weight, o.pos_weight});
}
Tensor kl_div(const Tensor& x, const Tensor& target, const KlDivOptions& o) {
  return pointwise(Op::kl_div, {.kind = LossKind::kl_div, .reduction = o.reduction, .log_target = o.log_target},
                   {x, target});
}

Tensor nll_loss(const Tensor& x_in, const Tensor& labels_in, const NllLossOptions& options) {
  Tensor x = x_in, labels = labels_in;
  NllLossOptions o = options;
  OpScope op(Op::nll_loss, {&x, &labels, &o.weight});
  if (!labels.defined()) fail(Kind::argument, "nll_loss: labels is an undefined tensor");
  check_constant("nll_loss", "weight", o.weight);
  const DType wide = accum_dtype(x.dtype());
  Tensor loss = empty(o.reduction == Reduction::none ? labels.sizes() : Dims{}, wide, x.device());
  const Tensor total = empty({}, wide, x.device());
  kernels::nll_loss(loss.context(), loss.view(), total.view(), x.view(), labels.view(), o.weight.view(),
                    {o.ignore_index, o.reduction});
  // Of x only the shape is needed, but its strides are what the gradient follows.
  return op.record(loss, {x, labels}, {{"labels", labels}, {"weight", o.weight}},
                   [like = x.detach(), labels, total, o](const Tensor& dloss) -> Gradients {
                     return {nll_gradient(dloss, like, labels, total, o), Tensor()};
                   });
}

}  // namespace apex::nn::functional
