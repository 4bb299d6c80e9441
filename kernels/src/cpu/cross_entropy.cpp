// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "../cross_entropy_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

namespace apex::kernels::cpu {
namespace {

std::int64_t label_of(const ConstView& labels, std::int64_t row) {
  return labels.as<std::int64_t>()[row * labels.stride(0)];
}

/// Rows that count. @throws Kind::argument for a label that is no class
std::int64_t count_rows(const ConstView& logits, const ConstView& labels, std::int64_t ignore_index) {
  const std::int64_t classes = logits.size(1);
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < labels.size(0); ++i) {
    const std::int64_t label = label_of(labels, i);
    if (label == ignore_index) continue;
    if (label < 0 || label >= classes)
      fail(Kind::argument, concat("cross_entropy: the label of row ", i, " is ", label, ", wanted 0 to ", classes - 1,
                                  " or ", ignore_index, " (ignored)"));
    ++rows;
  }
  return rows;
}

template <class A>
struct RowResult {
  A lse, loss;
};

template <class A, class T>
RowResult<A> row_loss(const T* x, std::int64_t stride, std::int64_t classes, std::int64_t label, A smoothing) {
  const auto value = [=](std::int64_t c) { return convert<A>(x[c * stride]); };
  const A high = simd::max<A>(classes, -std::numeric_limits<A>::infinity(), value);
  const A lse = high + std::log(simd::sum<A>(classes, [=](std::int64_t c) { return std::exp(value(c) - high); }));
  if (label < 0) return {lse, A(0)};
  A loss = lse - value(label);
  if (smoothing != A(0))  // without it a logit of -infinity must not meet a factor of 0
    loss = (A(1) - smoothing) * loss + smoothing * (lse - simd::sum<A>(classes, value) / static_cast<A>(classes));
  return {lse, loss};
}

}  // namespace

void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t counted = count_rows(logits, labels, options.ignore_index);
  visit_floating(logits.dtype, "cross_entropy", [&]<class T>() {
    using A = accum_t<T>;
    const bool each = options.reduction == Reduction::none;
    const Workspace memory = ctx.workspace(each ? 0 : static_cast<std::size_t>(rows) * sizeof(A));
    A* losses = each ? loss.as<A>() : memory.as<A>();
    const std::int64_t step = each ? loss.stride(0) : 1;
    parallel_for(rows, classes * 8, [&](std::int64_t i) {
      const std::int64_t label = label_of(labels, i);
      const auto result =
          row_loss<A>(logits.as<T>() + i * logits.stride(0), logits.stride(1), classes,
                      label == options.ignore_index ? -1 : label, static_cast<A>(options.label_smoothing));
      losses[i * step] = result.loss;
      if (lse.defined()) lse.as<A>()[i] = result.lse;
    });
    if (each) return;
    const double sum = simd::sum<double>(rows, [&](std::int64_t i) { return static_cast<double>(losses[i]); });
    *loss.as<A>() = static_cast<A>(options.reduction == Reduction::mean ? sum / static_cast<double>(counted) : sum);
  });
}

void cross_entropy_backward(const Context&, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t counted = count_rows(logits, labels, options.ignore_index);
  visit_floating(logits.dtype, "cross_entropy", [&]<class T>() {
    using A = accum_t<T>;
    const bool each = options.reduction == Reduction::none;
    const A divisor = options.reduction == Reduction::mean ? static_cast<A>(counted) : A(1);
    const A on_label = static_cast<A>(1.0 - options.label_smoothing);
    const A on_all = static_cast<A>(options.label_smoothing / static_cast<double>(classes));
    parallel_for(rows, classes * 8, [&](std::int64_t i) {
      const T* x = logits.as<T>() + i * logits.stride(0);
      T* to = dlogits.as<T>() + i * dlogits.stride(0);
      const std::int64_t label = label_of(labels, i), from = logits.stride(1), step = dlogits.stride(1);
      if (label == options.ignore_index) {
        for (std::int64_t c = 0; c < classes; ++c) to[c * step] = convert<T>(A(0));
        return;
      }
      const A g = dloss.as<A>()[each ? i * dloss.stride(0) : 0] / divisor, log_sum = lse.as<A>()[i];
      for (std::int64_t c = 0; c < classes; ++c) {
        const A target = on_all + (c == label ? on_label : A(0));
        to[c * step] = convert<T>(g * (std::exp(convert<A>(x[c * from]) - log_sum) - target));
      }
    });
  });
}

}  // namespace apex::kernels::cpu
