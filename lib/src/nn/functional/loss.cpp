// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/random.hpp"
#include "apex/kernels/softmax.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

using SoftmaxKernel = void (*)(const Context&, View, ConstView, int);
using SoftmaxBackward = void (*)(const Context&, View, ConstView, ConstView, int);

Tensor softmax_op(Op which, SoftmaxKernel forward, SoftmaxBackward backward, Tensor x, int dim) {
  OpScope op(which, {&x});
  const int d = wrap_dim(dim, x.dim(), op.row().name);
  Tensor y = empty_like(x);
  forward(x.context(), y.view(), x.view(), d);
  const Tensor kept = y.detach();
  return op.record(y, {x}, {{"output", kept}}, [kept, d, backward](const Tensor& dy) -> Gradients {
    Tensor dx = empty_like(kept);
    backward(dy.context(), dx.view(), dy.view(), kept.view(), d);
    return {dx};
  });
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
                     Tensor dlogits = empty_like(logits);
                     kernels::cross_entropy_backward(dloss.context(), dlogits.view(), dloss.view(), logits.view(),
                                                     lse.view(), labels.view(), options);
                     return {dlogits, Tensor()};
                   });
}

Tensor dropout(const Tensor& x_in, double p, bool training, Generator& generator) {
  Tensor x = x_in;
  OpScope op(Op::dropout, {&x});
  if (!(p >= 0.0 && p <= 1.0)) fail(Kind::argument, concat("dropout: p = ", p, " is not in [0, 1]"));
  if (!training || p == 0.0) return x;
  const SampleRows rows = current_sample_rows();
  const kernels::RandomState state{generator.seed, generator.next(), rows.first, rows.stride};
  Tensor y = empty_like(x);
  kernels::dropout(x.context(), y.view(), View{}, x.view(), p, state);
  return op.record(y, {x}, {}, [p, state](const Tensor& dy) -> Gradients {
    Tensor dx = empty_like(dy);
    kernels::dropout(dy.context(), dx.view(), View{}, dy.view(), p, state);
    return {dx};
  });
}

}  // namespace apex::nn::functional
