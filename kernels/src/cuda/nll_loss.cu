// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../index_faults.hpp"
#include "../loss_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostParts = 1024;
constexpr std::int64_t kMostPlanes = 16;  // rows of a grid: enough for few places of many classes

/// The places of labels. Operands of `index`: labels, x or dx without its classes, loss or dloss.
template <class N>
struct Places {
  Index<3> index;
  std::int64_t classes, class_stride, ignore_index;
  const std::int64_t* labels;
  const N* weight;  // may be null

  __device__ compute_t<N> weight_of(std::int64_t label) const {
    return weight == nullptr ? compute_t<N>(1) : load(weight[label]);
  }
  __device__ bool is_class(std::int64_t label) const { return label >= 0 && label < classes; }
};

/// Losses, and per block the sums of losses and of weights. loss: null when they are reduced.
template <class N>
__global__ void __launch_bounds__(kThreads)
    forward(compute_t<N>* loss, const N* x, Places<N> s, double* sums, double* weights) {
  using C = compute_t<N>;
  double sum = 0, total = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < s.index.numel; i += step) {
    const auto at = s.index.at(i);
    const std::int64_t label = s.labels[at.v[0]];
    C value = C(0), w = C(0);
    if (label != s.ignore_index) {
      value = static_cast<C>(NAN);
      if (s.is_class(label)) {
        w = s.weight_of(label);
        value = -w * load(x[at.v[1] + label * s.class_stride]);
      }
    }
    if (loss != nullptr) loss[at.v[2]] = value;
    sum += static_cast<double>(value);
    total += static_cast<double>(w);
  }
  sum = block_sum<kThreads>(sum);
  total = block_sum<kThreads>(total);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    weights[blockIdx.x] = total;
  }
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    finish(A* loss, A* total_weight, const double* sums, const double* weights, int count, bool mean) {
  double sum = 0, total = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    sum += sums[i];
    total += weights[i];
  }
  sum = block_sum<kThreads>(sum);
  total = block_sum<kThreads>(total);
  if (threadIdx.x != 0) return;
  if (loss != nullptr) *loss = static_cast<A>(mean ? sum / total : sum);
  if (total_weight != nullptr) *total_weight = static_cast<A>(total);
}

/// What dx gets at the label of the place whose operands lie at `at`.
template <class N>
__device__ __forceinline__ N slope_at(const Places<N>& s, const Index<3>::Offsets& at, std::int64_t label,
                                      const compute_t<N>* dloss, const compute_t<N>* total_weight) {
  using C = compute_t<N>;
  if (label == s.ignore_index || !s.is_class(label)) return store<N>(C(0));
  return store<N>(-s.weight_of(label) * dloss[at.v[2]] / (total_weight == nullptr ? C(1) : *total_weight));
}

/// Every element of dx where the classes of a place lie side by side: a warp for each place.
template <class N>
__global__ void __launch_bounds__(kThreads)
    backward_rows(N* dx, const compute_t<N>* dloss, const compute_t<N>* total_weight, Places<N> s) {
  const std::int64_t place = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (place >= s.index.numel) return;
  const auto at = s.index.at(place);
  const std::int64_t label = s.labels[at.v[0]];
  const N value = slope_at(s, at, label, dloss, total_weight), zero = store<N>(compute_t<N>(0));
  for (std::int64_t c = threadIdx.x % 32; c < s.classes; c += 32)
    dx[at.v[1] + c * s.class_stride] = c == label ? value : zero;
}

/// The same where places lie side by side: a thread for each, and some of the classes for each row of the grid.
template <class N>
__global__ void __launch_bounds__(kThreads)
    backward_planes(N* dx, const compute_t<N>* dloss, const compute_t<N>* total_weight, Places<N> s) {
  const std::int64_t place = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= s.index.numel) return;
  const auto at = s.index.at(place);
  const std::int64_t label = s.labels[at.v[0]];
  const N value = slope_at(s, at, label, dloss, total_weight), zero = store<N>(compute_t<N>(0));
  for (std::int64_t c = blockIdx.y; c < s.classes; c += gridDim.y)
    dx[at.v[1] + c * s.class_stride] = c == label ? value : zero;
}

template <class T>
Places<native_t<T>> places_of(const ConstView& labels, const ConstView& x, const ConstView& loss,
                              const ConstView& weight, const NllOptions& options) {
  const bool each = options.reduction == Reduction::none;
  return {make_index<3>(labels.sizes, {labels.strides, without_classes(x.strides),
                                       each ? loss.strides : Dims::filled(labels.rank(), 0)}),
          x.size(1),
          x.stride(1),
          options.ignore_index,
          labels.as<std::int64_t>(),
          weight.defined() ? native<T>(weight) : nullptr};
}

}  // namespace

void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options) {
  check_indices(ctx, {"nll_loss", "label", x.size(1), options.ignore_index}, labels);
  const bool each = options.reduction == Reduction::none;
  visit_floating(x.dtype, "nll_loss", [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    const auto s = places_of<T>(labels, x, loss, weight, options);
    const int parts = static_cast<int>(std::clamp<std::int64_t>(ceil_div(s.index.numel, kThreads * 4), 1, kMostParts));
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(2 * parts) * sizeof(double));
    double *sums = memory.as<double>(), *weights = sums + parts;
    const auto stream = stream_of(ctx);
    forward<N><<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(each ? loss.as<A>() : nullptr, native<T>(x), s,
                                                                      sums, weights);
    check_launch("nll_loss");
    if (each && !total_weight.defined()) return;
    finish<A><<<1, kThreads, 0, stream>>>(each ? nullptr : loss.as<A>(),
                                          total_weight.defined() ? total_weight.as<A>() : nullptr, sums, weights, parts,
                                          options.reduction == Reduction::mean);
    check_launch("nll_loss");
  });
}

void nll_loss_backward(const Context& ctx, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options) {
  if (dx.numel() == 0) return;
  check_indices(ctx, {"nll_loss", "label", dx.size(1), options.ignore_index}, labels);
  visit_floating(dx.dtype, "nll_loss_backward", [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    const auto s = places_of<T>(labels, dx, dloss, weight, options);
    const A* total = options.reduction == Reduction::mean ? total_weight.as<A>() : nullptr;
    const auto stream = stream_of(ctx);
    if (s.index.stride[1][0] > s.class_stride || s.index.numel == 1) {
      const auto blocks = static_cast<unsigned>(ceil_div(s.index.numel, kThreads / 32));
      backward_rows<N><<<blocks, kThreads, 0, stream>>>(native<T>(dx), dloss.as<A>(), total, s);
    } else {
      const dim3 blocks(static_cast<unsigned>(ceil_div(s.index.numel, kThreads)),
                        static_cast<unsigned>(std::min<std::int64_t>(s.classes, kMostPlanes)));
      backward_planes<N><<<blocks, kThreads, 0, stream>>>(native<T>(dx), dloss.as<A>(), total, s);
    }
    check_launch("nll_loss_backward");
  });
}

}  // namespace apex::kernels::cuda
