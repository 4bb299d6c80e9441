// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "../batch_norm_impl.hpp"
#include "../copy_impl.hpp"
#include "channels.hpp"

namespace apex::kernels::cpu {
namespace {

/// C values in f64 from a [C] view, `otherwise` where it is not given.
struct Values {
  Values(const Context& ctx, const ConstView& v, std::int64_t c, double otherwise)
      : memory(ctx.workspace(static_cast<std::size_t>(c) * sizeof(double))) {
    double* to = memory.as<double>();
    if (!v.defined()) {
      std::fill_n(to, c, otherwise);
      return;
    }
    visit_floating(v.dtype, "batch_norm", [&]<class T>() {
      for (std::int64_t i = 0; i < c; ++i) to[i] = convert<double>(v.as<T>()[i]);
    });
  }
  double operator[](std::int64_t i) const { return memory.as<double>()[i]; }

  Workspace memory;
};

void store_value(const View& v, std::int64_t i, double value) {
  visit_floating(v.dtype, "batch_norm", [&]<class T>() { v.as<T>()[i] = convert<T>(value); });
}

/// Per-channel constants in A, in one piece of scratch.
template <class A>
struct Constants {
  Constants(const Context& ctx, std::int64_t c, int count)
      : channels(c), memory(ctx.workspace(static_cast<std::size_t>(c * count) * sizeof(A))) {}
  A* operator[](int i) const { return memory.template as<A>() + i * channels; }

  std::int64_t channels;
  Workspace memory;
};

/// y = (x - mean) * scale + bias: scale = weight * inv_std. One expression for forward and for masks made again.
template <class Value>
Value normalised(Value x, Value mean, Value scale, Value bias) {
  return (x - mean) * scale + bias;
}

template <class T, class A>
struct Affine {
  Constants<A> memory;
  const A* mean;
  const A* scale;
  const A* bias;

  Affine(const Context& ctx, std::int64_t c, const ConstView& mean_view, const ConstView& inv_std,
         const ConstView& weight, const ConstView& bias_view)
      : memory(ctx, c, 2), mean(mean_view.as<A>()), scale(memory[0]), bias(memory[1]) {
    const Values w(ctx, weight, c, 1.0), b(ctx, bias_view, c, 0.0);
    for (std::int64_t i = 0; i < c; ++i) {
      memory[0][i] = static_cast<A>(w[i]) * inv_std.as<A>()[i];
      memory[1][i] = static_cast<A>(b[i]);
    }
  }
};

enum class Mask { none, from_output, from_input };

Mask mask_of(bool relu, const ConstView& y) {
  return !relu ? Mask::none : y.defined() ? Mask::from_output : Mask::from_input;
}

/// dy where the output was positive.
template <class T, class A, Mask kMask>
struct MaskedGradient {
  const T* dy;
  const T* y;
  const T* x;
  const Affine<T, A>& affine;

  template <class Ops, class Get>
  typename Ops::Value at(std::int64_t i, Get&& get) const {
    using Value = typename Ops::Value;
    const Value g = Ops::load(dy + i);
    if constexpr (kMask == Mask::none) return g;
    Value out;
    if constexpr (kMask == Mask::from_output)
      out = Ops::load(y + i);
    else
      out = normalised(Ops::load(x + i), get(affine.mean), get(affine.scale), get(affine.bias));
    return out <= Value{} ? Value{} : g;
  }
};

/// Calls f with the masked gradient of the right kind.
template <class T, class A, class F>
void with_gradient(Mask mask, const ConstView& dy, const ConstView& y, const ConstView& x, const Affine<T, A>& affine,
                   F&& f) {
  const T* out = mask == Mask::from_output ? y.as<T>() : nullptr;
  switch (mask) {
    case Mask::none: return f(MaskedGradient<T, A, Mask::none>{dy.as<T>(), out, x.as<T>(), affine});
    case Mask::from_output: return f(MaskedGradient<T, A, Mask::from_output>{dy.as<T>(), out, x.as<T>(), affine});
    case Mask::from_input: return f(MaskedGradient<T, A, Mask::from_input>{dy.as<T>(), out, x.as<T>(), affine});
  }
}

template <class T, class A>
void statistics(const Context& ctx, A* mean, A* var, const T* x, const ChannelLayout& l) {
  const ChannelGroups groups(l);
  const std::int64_t c = l.c;
  const Workspace scratch = ctx.workspace(static_cast<std::size_t>(groups.count * 3 * c) * sizeof(A));
  A* partial = scratch.as<A>();  // per group [mean, M2, drift][c]
  for_each_group(l, groups, [&](std::int64_t group, std::int64_t channel) {
    A* means = partial + group * 3 * c;
    A* second = means + c;
    const std::int64_t c_begin = l.rows ? 0 : channel, c_end = l.rows ? c : channel + 1;
    sum_group<1>(l, groups, group, channel, means,
                 [x]<class Ops>(std::int64_t at, auto&&, auto& sums) { sums[0] += Ops::load(x + at); });
    const A count = static_cast<A>(groups.size(group));
    for (std::int64_t i = c_begin; i < c_end; ++i) means[i] /= count;
    sum_group<2>(l, groups, group, channel, second, [x, means]<class Ops>(std::int64_t at, auto&& get, auto& sums) {
      const auto d = Ops::load(x + at) - get(means);
      sums[0] += d * d;
      sums[1] += d;
    });
    for (std::int64_t i = c_begin; i < c_end; ++i) {  // the mean was rounded: what it missed is known now
      const A drift = second[c + i] / count;
      second[i] -= drift * second[c + i];
      second[c + i] = drift;
    }
  });
  parallel_ranges(c, groups.count * 4, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 64;
    for (std::int64_t c0 = begin; c0 < end; c0 += kBlock) {
      const std::int64_t width = std::min(kBlock, end - c0);
      double m[kBlock] = {}, m2[kBlock] = {}, n = 0;
      for (std::int64_t g = 0; g < groups.count; ++g) {
        const double size = static_cast<double>(groups.size(g)), merged = n + size;
        const double ahead = size / merged, both = n * size / merged;
        const A* means = partial + g * 3 * c + c0;
        for (std::int64_t i = 0; i < width; ++i) {
          const double delta = static_cast<double>(means[i]) + static_cast<double>(means[2 * c + i]) - m[i];
          m[i] += delta * ahead;
          m2[i] += static_cast<double>(means[c + i]) + delta * delta * both;
        }
        n = merged;
      }
      for (std::int64_t i = 0; i < width; ++i) {
        mean[c0 + i] = static_cast<A>(m[i]);
        var[c0 + i] = n > 0 ? static_cast<A>(m2[i] / n) : A(0);
      }
    }
  });
}

template <class T, class A>
void apply(T* y, const T* x, const T* residual, const Affine<T, A>& a, bool relu, const ChannelLayout& l) {
  const auto run = [&](auto with_residual, auto with_relu) {
    for_each_element<A>(l, [&]<class Ops>(std::int64_t at, auto&& get) {
      using Value = typename Ops::Value;
      Value v = normalised(Ops::load(x + at), get(a.mean), get(a.scale), get(a.bias));
      if constexpr (with_residual) v = v + Ops::load(residual + at);
      if constexpr (with_relu) v = v <= Value{} ? Value{} : v;
      Ops::store(y + at, v);
    });
  };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  if (residual != nullptr)
    relu ? run(yes, yes) : run(yes, no);
  else
    relu ? run(no, yes) : run(no, no);
}

/// sums = [sum g, sum g (x - mean)] in f64, dresidual = g and, with constant statistics, dx = g * scale on the way.
template <class T, class A, class Gradient>
void backward_sums(const Context& ctx, double* sums, T* dresidual, T* constant_dx, const Gradient& gradient,
                   const ChannelLayout& l) {
  sum_channels<2, A>(ctx, l, sums, [&]<class Ops>(std::int64_t at, auto&& get, auto& s) {
    const auto g = gradient.template at<Ops>(at, get);
    s[0] += g;
    s[1] += g * (Ops::load(gradient.x + at) - get(gradient.affine.mean));
    if (dresidual != nullptr) Ops::store(dresidual + at, g);
    if (constant_dx != nullptr) Ops::store(constant_dx + at, g * get(gradient.affine.scale));
  });
}

/// dx = (g - sum_dy / n - (x - mean) * inv_std^2 * sum_dy_xmu / n) * scale
template <class T, class A, class Gradient>
void backward_apply(const Context& ctx, T* dx, const Gradient& gradient, const ConstView& inv_std, const double* sum_dy,
                    const double* sum_dy_xmu, double n, const ChannelLayout& l) {
  const Constants<A> k(ctx, l.c, 2);
  for (std::int64_t i = 0; i < l.c; ++i) {
    const double s = static_cast<double>(inv_std.as<A>()[i]);
    k[0][i] = static_cast<A>(sum_dy[i] / n);
    k[1][i] = static_cast<A>(s * s * sum_dy_xmu[i] / n);
  }
  const A* offset = k[0];
  const A* slope = k[1];
  for_each_element<A>(l, [&]<class Ops>(std::int64_t at, auto&& get) {
    const auto g = gradient.template at<Ops>(at, get);
    const auto xmu = Ops::load(gradient.x + at) - get(gradient.affine.mean);
    Ops::store(dx + at, (g - get(offset) - xmu * get(slope)) * get(gradient.affine.scale));
  });
}

template <class T>
T* data_or_null(const View& v) {
  return v.defined() ? v.as<T>() : nullptr;
}

/// dweight = inv_std * sum g (x - mean), dbias = sum g, where wanted.
void store_parameter_gradients(const View& dweight, const View& dbias, const double* sums, const ConstView& inv_std,
                               std::int64_t c) {
  for (std::int64_t i = 0; i < c; ++i) {
    const double s =
        inv_std.dtype == DType::f64 ? inv_std.as<double>()[i] : static_cast<double>(inv_std.as<float>()[i]);
    if (dweight.defined()) store_value(dweight, i, sums[c + i] * s);
    if (dbias.defined()) store_value(dbias, i, sums[i]);
  }
}

/// A [C] scratch tensor in the accumulation type.
View scratch_vector(const Workspace& memory, const ConstView& x) {
  View v;
  v.data = memory.data();
  v.dtype = accum_dtype(x.dtype);
  v.device = x.device;
  v.sizes = {x.size(1)};
  v.strides = {1};
  v.present = true;
  return v;
}

}  // namespace

void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x) {
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    statistics<T, A>(ctx, mean.as<A>(), var.as<A>(), x.as<T>(), ChannelLayout(x));
  });
}

void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps) {
  const std::int64_t c = mean.size(0);
  const Values m(ctx, mean, c, 0.0), v(ctx, var, c, 0.0);
  for (std::int64_t i = 0; i < c; ++i) store_value(inv_std, i, 1.0 / std::sqrt(v[i] + eps));
  if (!running_mean.defined()) return;
  const Values old_mean(ctx, running_mean, c, 0.0), old_var(ctx, running_var, c, 0.0);
  const double unbiased = n > 1 ? n / (n - 1) : 1.0;
  for (std::int64_t i = 0; i < c; ++i) {
    store_value(running_mean, i, (1 - momentum) * old_mean[i] + momentum * m[i]);
    store_value(running_var, i, (1 - momentum) * old_var[i] + momentum * v[i] * unbiased);
  }
}

void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu) {
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    const Affine<T, A> a(ctx, x.size(1), mean, inv_std, weight, bias);
    apply<T, A>(y.as<T>(), x.as<T>(), residual.defined() ? residual.as<T>() : nullptr, a, relu, ChannelLayout(x));
  });
}

void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options) {
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(x.size(1)) * sizeof(double));
  const View var = scratch_vector(memory, x);
  batch_norm_statistics(ctx, mean, var, x);
  const bool tracks = ChannelLayout(x).values_per_channel() > 0;
  if (options.cumulative) momentum = 1.0 / (static_cast<double>(*options.batches_tracked.as<std::int64_t>()) + 1.0);
  batch_norm_finish_statistics(ctx, inv_std, tracks ? running_mean : View{}, tracks ? running_var : View{}, mean, var,
                               static_cast<double>(ChannelLayout(x).values_per_channel()), momentum, options.eps);
  if (tracks && options.batches_tracked.defined()) ++*options.batches_tracked.as<std::int64_t>();
  batch_norm_apply(ctx, y, x, mean, inv_std, weight, bias, residual, options.relu);
}

namespace {
/// running_mean and 1 / sqrt(running_var + eps) as statistics of x.
struct RunningStatistics {
  RunningStatistics(const Context& ctx, const ConstView& x, const ConstView& running_mean, const ConstView& running_var,
                    double eps)
      : memory{ctx.workspace(static_cast<std::size_t>(x.size(1)) * sizeof(double)),
               ctx.workspace(static_cast<std::size_t>(x.size(1)) * sizeof(double))},
        mean(scratch_vector(memory[0], x)),
        inv_std(scratch_vector(memory[1], x)) {
    const Values m(ctx, running_mean, x.size(1), 0.0), v(ctx, running_var, x.size(1), 0.0);
    for (std::int64_t i = 0; i < x.size(1); ++i) {
      store_value(mean, i, m[i]);
      store_value(inv_std, i, 1.0 / std::sqrt(v[i] + eps));
    }
  }
  Workspace memory[2];
  View mean, inv_std;
};
}  // namespace

void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options) {
  const RunningStatistics s(ctx, x, running_mean, running_var, options.eps);
  batch_norm_apply(ctx, y, x, s.mean, s.inv_std, weight, bias, residual, options.relu);
}

void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options) {
  const ChannelLayout l(x);
  const double n = static_cast<double>(l.values_per_channel());
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    const Affine<T, A> a(ctx, l.c, mean, inv_std, weight, bias);
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(2 * l.c) * sizeof(double));
    double* sums = memory.as<double>();
    with_gradient<T, A>(mask_of(options.relu, y), dy, y, x, a, [&](const auto& gradient) {
      backward_sums<T, A>(ctx, sums, data_or_null<T>(dresidual), static_cast<T*>(nullptr), gradient, l);
      if (dx.defined() && !dresidual.defined())
        backward_apply<T, A>(ctx, dx.as<T>(), gradient, inv_std, sums, sums + l.c, n, l);
    });
    if (dx.defined() && dresidual.defined())  // already masked: one tensor less to read
      with_gradient<T, A>(Mask::none, dresidual, {}, x, a, [&](const auto& gradient) {
        backward_apply<T, A>(ctx, dx.as<T>(), gradient, inv_std, sums, sums + l.c, n, l);
      });
    store_parameter_gradients(dweight, dbias, sums, inv_std, l.c);
  });
}

void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options) {
  const ChannelLayout l(x);
  const RunningStatistics s(ctx, x, running_mean, running_var, options.eps);
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    const Affine<T, A> a(ctx, l.c, s.mean, s.inv_std, weight, bias);
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(2 * l.c) * sizeof(double));
    with_gradient<T, A>(mask_of(options.relu, y), dy, y, x, a, [&](const auto& gradient) {
      backward_sums<T, A>(ctx, memory.as<double>(), data_or_null<T>(dresidual), data_or_null<T>(dx), gradient, l);
    });
    store_parameter_gradients(dweight, dbias, memory.as<double>(), s.inv_std, l.c);
  });
}

void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu) {
  const ChannelLayout l(x);
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    const Affine<T, A> a(ctx, l.c, mean, inv_std, weight, bias);
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(2 * l.c) * sizeof(double));
    double* sums = memory.as<double>();
    with_gradient<T, A>(mask_of(relu, y), dy, y, x, a, [&](const auto& gradient) {
      backward_sums<T, A>(ctx, sums, data_or_null<T>(dresidual), static_cast<T*>(nullptr), gradient, l);
    });
    for (std::int64_t i = 0; i < l.c; ++i) {
      sum_dy.as<A>()[i] = static_cast<A>(sums[i]);
      sum_dy_xmu.as<A>()[i] = static_cast<A>(sums[l.c + i]);
    }
  });
}

void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu) {
  const ChannelLayout l(x);
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    using A = accum_t<T>;
    const Affine<T, A> a(ctx, l.c, mean, inv_std, weight, bias);
    const Values first(ctx, sum_dy, l.c, 0.0), second(ctx, sum_dy_xmu, l.c, 0.0);
    with_gradient<T, A>(mask_of(relu, y), dy, y, x, a, [&](const auto& gradient) {
      backward_apply<T, A>(ctx, dx.as<T>(), gradient, inv_std, first.memory.template as<double>(),
                           second.memory.template as<double>(), n, l);
    });
  });
}

}  // namespace apex::kernels::cpu
