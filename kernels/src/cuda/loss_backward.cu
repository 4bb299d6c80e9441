// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "loss.cuh"

namespace apex::kernels::cuda {
namespace {

/// dloss times a derivative.
template <class N>
struct Slope {
  using C = compute_t<N>;
  LossOp<N> op;
  LossTerm term;
  C factor;
  __device__ C operator()(C g, C x, C t) const {
    return g * factor *
           (term == LossTerm::by_x ? op.template plain<LossTerm::by_x>(x, t)
                                   : op.template plain<LossTerm::by_target>(x, t));
  }
  __device__ C operator()(C g, C x, C t, C w, C p) const {
    return g * factor *
           (term == LossTerm::by_x ? op.template any<LossTerm::by_x>(x, t, w, p)
                                   : op.template any<LossTerm::by_target>(x, t, w, p));
  }
};

}  // namespace

void pointwise_loss_backward(const Context& ctx, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options) {
  if (x.numel() == 0) return;
  const char* op = name_of(options.kind);
  const bool weighted = weight.defined() || pos_weight.defined();
  const ConstView w = or_any(weight, x), p = or_any(pos_weight, x);
  ConstView g = dloss;
  if (options.reduction != Reduction::none) g.sizes = g.strides = Dims{};  // one element for all
  const double factor = options.reduction == Reduction::mean ? 1.0 / static_cast<double>(x.numel()) : 1.0;
  visit_floating(x.dtype, op, [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    const auto write = [&](const View& out, LossTerm term) {
      if (!out.defined()) return;
      const Slope<N> f{loss_op<N>(options, weight, pos_weight), term, static_cast<A>(factor)};
      if (weighted)
        map(ctx, op, f, index_of(out, g, x, target, w, p), native<T>(out), g.as<A>(), native<T>(x), native<T>(target),
            native<T>(w), native<T>(p));
      else
        map(ctx, op, f, index_of(out, g, x, target), native<T>(out), g.as<A>(), native<T>(x), native<T>(target));
    };
    write(dx, LossTerm::by_x);
    write(dtarget, LossTerm::by_target);
  });
}

}  // namespace apex::kernels::cuda
