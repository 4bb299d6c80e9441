// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/loss.hpp"
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/kernels/softmax.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

using SoftmaxKernel = void (*)(const Context&, View, ConstView, int);
using SoftmaxBackward = void (*)(const Context&, View, ConstView, ConstView, int);

/// Of softmax or log_softmax from their output y.
Tensor differentiable_backward(Op which, const Tensor& dy, const Tensor& y, int dim) {
  if (which == Op::softmax) return mul(y, sub(dy, sum(mul(y, dy), {dim}, true)));
  return sub(dy, mul(exp(y), sum(dy, {dim}, true)));
}

Tensor softmax_op(Op which, SoftmaxKernel forward, SoftmaxBackward backward, Tensor x, int dim) {
  OpScope op(which, {&x});
  const int d = wrap_dim(dim, x.dim(), op.row().name);
  Tensor y = empty_like(x);
  forward(x.context(), y.view(), x.view(), d);
  const Tensor kept = y.detach();
  return op.record(y, {x}, {{"output", kept}}, [kept, d, which, backward](BackwardCall& call) -> Gradients {
    const Tensor& dy = call.grads[0];
    if (grad_mode()) return {differentiable_backward(which, dy, call.attached(kept), d)};
    Tensor dx = empty_like(kept);
    backward(dy.context(), dx.view(), dy.view(), kept.view(), d);
    return {dx};
  });
}

/// softmax(logits) - target, row by row times the gradient of the row's loss; out of differentiable ops, in the loss'
/// type.
Tensor cross_entropy_gradient(const Tensor& dloss, const Tensor& logits, const Tensor& labels,
                              const CrossEntropyOptions& o) {
  const auto context = dloss.context();
  const DType wide = dloss.dtype();
  const Device device = dloss.device();
  const std::int64_t rows = logits.size(0), classes = logits.size(1);

  Tensor target = empty(logits.sizes(), wide, device);  // (1 - epsilon) on the label, epsilon / C everywhere
  const Tensor on_label = full({}, o.label_smoothing - 1.0, wide, device);
  kernels::nll_loss_backward(context, target.view(), on_label.view(), labels.view(), {}, {},
                             {o.ignore_index, Reduction::sum});
  kernels::scale_shift(context, target.view(), target.view(), 1.0, o.label_smoothing / static_cast<double>(classes));

  const Tensor counts = empty({rows}, DType::boolean, device);
  const Tensor ignored = full({}, static_cast<double>(o.ignore_index), DType::i64, device);
  kernels::compare(context, counts.view(), labels.view(), ignored.view(), kernels::CompareOp::ne);
  Tensor of_row = dloss;
  if (o.reduction == Reduction::mean) {
    const Tensor counted = empty({}, DType::i64, device), divisor = empty({}, wide, device);
    kernels::reduce(context, counted.view(), counts.view(), {}, kernels::ReduceOp::sum);
    kernels::copy(context, divisor.view(), counted.view());
    of_row = div(dloss, divisor);
  }
  of_row = where(counts, of_row, zeros({}, wide, device));
  return cast(mul(sub(softmax(cast(logits, wide), 1), target), reshape(of_row, {rows, 1})), logits.dtype());
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) {
  return softmax_op(Op::softmax, kernels::softmax, kernels::softmax_backward, x, dim);
}
Tensor log_softmax(const Tensor& x, int dim) {
  return softmax_op(Op::log_softmax, kernels::log_softmax, kernels::log_softmax_backward, x, dim);
}

Tensor cross_entropy(const Tensor& logits_in, const Tensor& labels_in, const CrossEntropyOptions& options) {
  Tensor logits = logits_in, labels = labels_in;
  OpScope op(Op::cross_entropy, {&logits, &labels});
  if (logits.dim() != 2 || !labels.defined())
    fail(Kind::argument, concat("cross_entropy: logits of sizes ", logits.sizes(), " must be [N, C], with labels [N]"));
  const DType wide = accum_dtype(logits.dtype());
  const bool single = options.reduction != kernels::Reduction::none;
  Tensor loss = empty(single ? Dims{} : Dims{logits.size(0)}, wide, logits.device());
  Tensor lse = empty({logits.size(0)}, wide, logits.device());
  kernels::cross_entropy(logits.context(), loss.view(), lse.view(), logits.view(), labels.view(), options);
  return op.record(loss, {logits, labels}, {{"logits", logits}, {"labels", labels}},
                   [logits, labels, lse, options](const Tensor& dloss) -> Gradients {
                     if (grad_mode()) return {cross_entropy_gradient(dloss, logits, labels, options), Tensor()};
                     Tensor dlogits = empty_like(logits);
                     kernels::cross_entropy_backward(dloss.context(), dlogits.view(), dloss.view(), logits.view(),
                                                     lse.view(), labels.view(), options);
                     return {dlogits, Tensor()};
                   });
}

}  // namespace apex::nn::functional
