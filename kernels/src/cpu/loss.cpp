// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../index_faults.hpp"
#include "../loss_impl.hpp"

#include "../loss_formulas.hpp"
#include "map.hpp"
#include "vector_math.hpp"

namespace apex::kernels::cpu {
namespace {

/// The functions of loss_formulas.hpp.
struct Math {
  template <class C>
  [[gnu::always_inline]] static inline C exp(C x) {
    return vm::exp(x);
  }
  template <class C>
  [[gnu::always_inline]] static inline C log(C x) {
    return vm::log(x);
  }
  template <class C>
  [[gnu::always_inline]] static inline C log_normal(C x) {
    return vm::log(x);
  }
  template <class C>
  [[gnu::always_inline]] static inline C fabs(C x) {
    return std::fabs(x);
  }
  template <class C>
  [[gnu::always_inline]] static inline C divide(C a, C b) {
    return a / b;
  }
  template <class C>
  [[gnu::always_inline]] static inline C log1p_of_unit(C x) {
    return vm::log1p_of_unit(x);
  }
};

/// Elements of a sum in f32 or f64 lanes between two additions in f64; parts of this size are what threads share.
constexpr std::int64_t kPart = 4096;

/// What a pointwise loss reads. Operand 0 of the loop is the result (or x again where there is none), then x, target,
/// weight, pos_weight and, in backward, dloss. Absent weights are one constant.
template <class T>
struct Inputs {
  const T *x, *t, *w, *p;
  bool weighted;  ///< w or p was given
};

Dims strides_under(const ConstView& v, const Dims& sizes) {
  return v.defined() ? broadcast_strides(v.sizes, v.strides, sizes) : Dims::filled(sizes.size(), 0);
}

/// value[j] of the m <= kMapBlock elements from element `at` of a row on.
template <LossTerm kTerm, class Formula, class T, int N, class Offsets>
void values_of(compute_t<T>* value, Formula f, const Inputs<T>& in, const Loop<N>& loop, const Offsets& offset,
               std::int64_t at, std::int64_t m) {
  using C = compute_t<T>;
  C blocks[4][kMapBlock];
  const auto load = [&](const T* data, int k) {
    const std::int64_t stride = loop.inner_stride(k);
    return as_block(blocks[k - 1], data + offset[static_cast<std::size_t>(k)] + at * stride, stride, m);
  };
  const C *x = load(in.x, 1), *t = load(in.t, 2);
  const auto each = [&](auto&& weight_at, auto&& pos_weight_at) {
#pragma omp simd
    for (std::int64_t j = 0; j < m; ++j) {
      if constexpr (kTerm == LossTerm::value)
        value[j] = f.value(x[j], t[j], weight_at(j), pos_weight_at(j));
      else if constexpr (kTerm == LossTerm::by_x)
        value[j] = f.by_x(x[j], t[j], weight_at(j), pos_weight_at(j));
      else
        value[j] = f.by_target(x[j], t[j], weight_at(j), pos_weight_at(j));
    }
  };
  if (!in.weighted) return each([](std::int64_t) { return C(1); }, [](std::int64_t) { return C(1); });
  const C *w = load(in.w, 3), *p = load(in.p, 4);
  each([&](std::int64_t j) { return w[j]; }, [&](std::int64_t j) { return p[j]; });
}

template <class Formula, class T>
double sum_of(const Formula& f, const Inputs<T>& in, const Loop<5>& loop, double* parts) {
  using C = compute_t<T>;
  const std::int64_t count = (loop.numel + kPart - 1) / kPart;
  parallel_for(count, kPart, [&](std::int64_t part) {
    double sum = 0;
    for_each_row(loop, part * kPart, std::min(loop.numel, (part + 1) * kPart), [&](const auto& offset, std::int64_t n) {
      C value[kMapBlock];
      for (std::int64_t i = 0; i < n; i += kMapBlock) {
        const std::int64_t m = std::min(kMapBlock, n - i);
        values_of<LossTerm::value>(value, f, in, loop, offset, i, m);
        sum += static_cast<double>(lane_sum(value, m));
      }
    });
    parts[part] = sum;
  });
  return simd::sum<double>(count, [&](std::int64_t i) { return parts[i]; });
}

template <class Formula, class T>
void each_loss(compute_t<T>* loss, const Formula& f, const Inputs<T>& in, const Loop<5>& loop) {
  using C = compute_t<T>;
  const std::int64_t step = loop.inner_stride(0);
  parallel_rows(loop, [&](const auto& offset, std::int64_t n) {
    C value[kMapBlock];
    for (std::int64_t i = 0; i < n; i += kMapBlock) {
      const std::int64_t m = std::min(kMapBlock, n - i);
      values_of<LossTerm::value>(value, f, in, loop, offset, i, m);
      store_block(loss + offset[0] + i * step, step, value, m);
    }
  });
}

template <LossTerm kTerm, class Formula, class T>
void gradient(T* out, const compute_t<T>* g, compute_t<T> factor, const Formula& f, const Inputs<T>& in,
              const Loop<6>& loop) {
  using C = compute_t<T>;
  const std::int64_t step = loop.inner_stride(0), g_step = loop.inner_stride(5);
  parallel_rows(loop, [&](const auto& offset, std::int64_t n) {
    C value[kMapBlock], by[kMapBlock];
    for (std::int64_t i = 0; i < n; i += kMapBlock) {
      const std::int64_t m = std::min(kMapBlock, n - i);
      values_of<kTerm>(value, f, in, loop, offset, i, m);
      load_block(by, g + offset[5] + i * g_step, g_step, m);
#pragma omp simd
      for (std::int64_t j = 0; j < m; ++j) value[j] *= by[j] * factor;
      store_block(out + offset[0] + i * step, step, value, m);
    }
  });
}

/// Calls run(formula) for the loss that `o` names.
template <class C, class F>
void visit_loss(const PointwiseLoss& o, F&& run) {
  using K = LossKind;
  const C delta = static_cast<C>(o.delta);
  switch (o.kind) {
    case K::mse: return run(LossFormula<K::mse, false, Math, C>{delta});
    case K::l1: return run(LossFormula<K::l1, false, Math, C>{delta});
    case K::smooth_l1: return run(LossFormula<K::smooth_l1, false, Math, C>{delta});
    case K::huber: return run(LossFormula<K::huber, false, Math, C>{delta});
    case K::bce: return run(LossFormula<K::bce, false, Math, C>{delta});
    case K::bce_with_logits: return run(LossFormula<K::bce_with_logits, false, Math, C>{delta});
    case K::kl_div:
      if (o.log_target) return run(LossFormula<K::kl_div, true, Math, C>{delta});
      return run(LossFormula<K::kl_div, false, Math, C>{delta});
  }
}

template <class T>
Inputs<T> inputs_of(const ConstView& x, const ConstView& t, const ConstView& w, const ConstView& p, const T* one) {
  return {x.as<T>(), t.as<T>(), w.defined() ? w.as<T>() : one, p.defined() ? p.as<T>() : one,
          w.defined() || p.defined()};
}

}  // namespace

void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options) {
  const bool each = options.reduction == Reduction::none;
  const auto loop = make_loop<5>(x.sizes, {each ? loss.strides : x.strides, x.strides, target.strides,
                                           strides_under(weight, x.sizes), strides_under(pos_weight, x.sizes)});
  visit_floating(x.dtype, name_of(options.kind), [&]<class T>() {
    using C = compute_t<T>;
    const T one = convert<T>(1.0f);
    const auto in = inputs_of<T>(x, target, weight, pos_weight, &one);
    visit_loss<C>(options, [&](const auto& formula) {
      if (each) return each_loss<std::remove_cvref_t<decltype(formula)>, T>(loss.as<C>(), formula, in, loop);
      const Workspace parts =
          ctx.workspace(static_cast<std::size_t>((loop.numel + kPart - 1) / kPart) * sizeof(double));
      const double sum = sum_of(formula, in, loop, parts.as<double>());
      const double divisor = options.reduction == Reduction::mean ? static_cast<double>(loop.numel) : 1.0;
      *loss.as<C>() = static_cast<C>(sum / divisor);
    });
  });
}

void pointwise_loss_backward(const Context&, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options) {
  const bool each = options.reduction == Reduction::none;
  visit_floating(x.dtype, name_of(options.kind), [&]<class T>() {
    using C = compute_t<T>;
    const T one = convert<T>(1.0f);
    const auto in = inputs_of<T>(x, target, weight, pos_weight, &one);
    const C factor = options.reduction == Reduction::mean ? static_cast<C>(1.0 / static_cast<double>(x.numel())) : C(1);
    const auto loop_to = [&](const View& out) {
      return make_loop<6>(x.sizes,
                          {out.strides, x.strides, target.strides, strides_under(weight, x.sizes),
                           strides_under(pos_weight, x.sizes), each ? dloss.strides : Dims::filled(x.rank(), 0)});
    };
    visit_loss<C>(options, [&](const auto& formula) {
      if (dx.defined()) gradient<LossTerm::by_x>(dx.as<T>(), dloss.as<C>(), factor, formula, in, loop_to(dx));
      if (dtarget.defined())
        gradient<LossTerm::by_target>(dtarget.as<T>(), dloss.as<C>(), factor, formula, in, loop_to(dtarget));
    });
  });
}

namespace {

/// Calls f(line, offsets) for every place of labels; offsets of labels and of two more operands.
template <class F>
void for_each_place(const Loop<3>& loop, std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t place = begin;
  for_each_row(loop, begin, end, [&](auto offset, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i, ++place) {
      f(place, offset);
      for (int k = 0; k < 3; ++k) offset[static_cast<std::size_t>(k)] += loop.inner_stride(k);
    }
  });
}

/// Operands labels, x or dx without its classes, loss or dloss; in row-major order.
Loop<3> places_of(const ConstView& labels, const ConstView& x, const ConstView& loss, bool each) {
  return make_loop<3>(
      labels.sizes, {labels.strides, without_classes(x.strides), each ? loss.strides : Dims::filled(labels.rank(), 0)},
      Order::logical);
}

}  // namespace

void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options) {
  const bool each = options.reduction == Reduction::none;
  const auto loop = places_of(labels, x, loss, each);
  const auto* label_at = labels.as<std::int64_t>();
  check_indices({"nll_loss", "label", x.size(1), options.ignore_index}, labels);
  visit_floating(x.dtype, "nll_loss", [&]<class T>() {
    using C = compute_t<T>;
    const std::int64_t parts = (loop.numel + kPart - 1) / kPart, step = x.stride(1);
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(2 * parts) * sizeof(double));
    double *sums = memory.as<double>(), *weights = sums + parts;
    parallel_for(parts, kPart, [&](std::int64_t part) {
      double sum = 0, total = 0;
      for_each_place(loop, part * kPart, std::min(loop.numel, (part + 1) * kPart), [&](std::int64_t, const auto& at) {
        const std::int64_t label = label_at[at[0]];
        const bool counts = label != options.ignore_index;
        const C w = !counts ? C(0) : weight.defined() ? convert<C>(weight.as<T>()[label]) : C(1);
        const C value = counts ? -w * convert<C>(x.as<T>()[at[1] + label * step]) : C(0);
        if (each) loss.as<C>()[at[2]] = value;
        sum += static_cast<double>(value);
        total += static_cast<double>(w);
      });
      sums[part] = sum;
      weights[part] = total;
    });
    const double total = simd::sum<double>(parts, [&](std::int64_t i) { return weights[i]; });
    if (total_weight.defined()) *total_weight.as<C>() = static_cast<C>(total);
    if (each) return;
    const double sum = simd::sum<double>(parts, [&](std::int64_t i) { return sums[i]; });
    *loss.as<C>() = static_cast<C>(options.reduction == Reduction::mean ? sum / total : sum);
  });
}

void nll_loss_backward(const Context&, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options) {
  const auto loop = places_of(labels, dx, dloss, options.reduction == Reduction::none);
  const auto* label_at = labels.as<std::int64_t>();
  const std::int64_t classes = dx.size(1), step = dx.stride(1);
  check_indices({"nll_loss", "label", classes, options.ignore_index}, labels);
  visit_floating(dx.dtype, "nll_loss_backward", [&]<class T>() {
    using C = compute_t<T>;
    const C divisor = options.reduction == Reduction::mean ? *total_weight.as<C>() : C(1);
    parallel_ranges(loop.numel, classes, [&](std::int64_t begin, std::int64_t end) {
      for_each_place(loop, begin, end, [&](std::int64_t, const auto& at) {
        const std::int64_t label = label_at[at[0]];
        T* to = dx.as<T>() + at[1];
        for (std::int64_t c = 0; c < classes; ++c) to[c * step] = T{};
        if (label == options.ignore_index) return;
        const C w = weight.defined() ? convert<C>(weight.as<T>()[label]) : C(1);
        to[label * step] = convert<T>(-w * dloss.as<C>()[at[2]] / divisor);
      });
    });
  });
}

}  // namespace apex::kernels::cpu
