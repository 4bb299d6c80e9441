// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "loss.cuh"

namespace apex::kernels::cuda {
namespace {

/// The one dloss of a reduced loss times a derivative.
template <class F, class C>
struct ScaledBy {
  F derivative;
  const C* g;
  C factor;
  __device__ C operator()(C x, C t) const { return __ldg(g) * factor * derivative(x, t); }
};

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
    // A reduced loss of operands that lie alike: a kernel for each kind.
    const auto write_alike = [&]<LossTerm kTerm>(const View& out) {
      return visit_loss(options, [&]<LossKind kKind, bool kLogTarget>() {
        constexpr LossTerm kWanted = is_of_difference(kKind) ? LossTerm::by_x : kTerm;
        using F = OneLoss<kWanted, kKind, kLogTarget, N>;
        const ScaledBy<F, A> f{{delta_of<N>(options)}, g.as<A>(), static_cast<A>(kWanted == kTerm ? factor : -factor)};
        return map_alike(ctx, op, f, index_of(out, x, target), native<T>(out), native<T>(x), native<T>(target));
      });
    };
    const auto write = [&](const View& out, LossTerm term) {
      if (!out.defined()) return;
      if (!weighted && options.reduction != Reduction::none) {
        if (term == LossTerm::by_x ? write_alike.template operator()<LossTerm::by_x>(out)
                                   : write_alike.template operator()<LossTerm::by_target>(out))
          return;
      }
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
