// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../conv_impl.hpp"

#include <array>
#include <cstdint>
#include <mutex>

#include "../copy_impl.hpp"
#include "../elementwise_impl.hpp"
#include "../reduce_impl.hpp"
#include "apex/core/cuda.hpp"
#include "apex/kernels/backend.hpp"
#include "conv_direct.hpp"
#include "conv_stem.hpp"
#include "cudnn/plans.hpp"

// f32 and 16 bits go to cuDNN, f64 and what cuDNN has no plan for to our own kernels. cuDNN wants all operands in one
// layout, at aligned addresses: those that are not are copied.

namespace apex::kernels::cuda {
namespace {

using cudnn::Pass;

constexpr auto kRow = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

/// One convolution in any of its passes. The tensor a pass writes is not read.
struct Problem {
  Pass pass;
  ConstView x, w, y, bias;
  Conv2dOptions options;

  ConstView& output() { return pass == Pass::forward ? y : pass == Pass::data ? x : w; }
};

bool aligned(const ConstView& v) { return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0; }

cudnn::ConvKey key_of(const Context& ctx, const Problem& p, MemoryFormat format) {
  cudnn::ConvKey key;
  key.device = ctx.device.index;
  key.pass = static_cast<std::int64_t>(p.pass);
  key.dtype = static_cast<std::int64_t>(p.x.dtype);
  key.channels_last = format == kLast;
  for (int d = 0; d < 4; ++d) {
    key.x[d] = p.x.size(d);
    key.w[d] = p.w.size(d);
    key.y[d] = p.y.size(d);
  }
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    key.stride[d] = p.options.stride[i];
    key.padding[d] = p.options.padding[i];
    key.dilation[d] = p.options.dilation[i];
  }
  key.bias = p.bias.defined();
  key.tf32 = p.x.dtype == DType::f32 && allow_tf32();
  key.deterministic = deterministic();
  return key;
}

/// The layout all operands have, or the one to bring them to.
MemoryFormat best_format(const Problem& p) {
  const auto all = [&](MemoryFormat f) { return p.x.is_contiguous(f) && p.w.is_contiguous(f) && p.y.is_contiguous(f); };
  const bool narrow = is_16bit(p.x.dtype);
  if (all(narrow ? kLast : kRow)) return narrow ? kLast : kRow;
  if (all(narrow ? kRow : kLast)) return narrow ? kRow : kLast;
  return narrow || p.x.is_contiguous(kLast) ? kLast : kRow;
}

View view_in(void* data, const ConstView& like, const Dims& sizes, MemoryFormat format) {
  View v;
  static_cast<BasicView<void*>&>(v) = {data, like.dtype, like.device, sizes, strides_for(sizes, format), true};
  return v;
}

/// An operand of cuDNN: the tensor itself, or a copy in scratch.
struct Operand {
  Workspace memory;
  ConstView view;
};

Operand operand(const Context& ctx, const ConstView& v, MemoryFormat format, bool read) {
  if (v.is_contiguous(format) && aligned(v)) return {{}, v};
  Operand o{ctx.workspace(static_cast<std::size_t>(v.numel()) * size_of(v.dtype)), {}};
  const View copied = view_in(o.memory.data(), v, v.sizes, format);
  if (read) copy(ctx, copied, v);
  o.view = copied;
  return o;
}

View writable(const ConstView& v) {
  View out;
  static_cast<BasicView<void*>&>(out) = {const_cast<void*>(v.data), v.dtype, v.device, v.sizes, v.strides, true};
  return out;
}

bool run_in(const Context& ctx, Problem p, MemoryFormat format) {
  const auto key = key_of(ctx, p, format);
  if (cudnn::known_missing(key)) return false;
  const View result = writable(p.output());
  const Operand x = operand(ctx, p.x, format, p.pass != Pass::data),
                w = operand(ctx, p.w, format, p.pass != Pass::weight),
                y = operand(ctx, p.y, format, p.pass != Pass::forward);
  Operand bias;
  if (p.bias.defined()) bias = operand(ctx, p.bias, kRow, true);
  p.x = x.view;
  p.w = w.view;
  p.y = y.view;
  if (!cudnn::run_conv(ctx, key, {x.view.data, w.view.data, y.view.data, bias.view.data})) return false;
  if (p.output().data != result.data) copy(ctx, result, p.output());
  return true;
}

/// False when cuDNN computes this in no layout.
bool run(const Context& ctx, const Problem& p) {
  const MemoryFormat first = best_format(p);
  if (p.bias.defined() && is_16bit(p.x.dtype) && run_in(ctx, p, first)) return true;
  Problem plain = p;
  plain.bias = {};
  if (!run_in(ctx, plain, first) && !run_in(ctx, plain, first == kRow ? kLast : kRow)) return false;
  if (p.bias.defined()) {
    const View result = writable(plain.output());
    cuda::binary(ctx, result, result, along_channels(p.bias), BinaryOp::add);
  }
  return true;
}

/// The first layer's way: see conv_stem.hpp.
bool run_folded(const Context& ctx, const Problem& p) {
  const Dims x_sizes = stem::folded_input(p.w, p.y), w_sizes = stem::folded_weight(p.w);
  const std::size_t element = size_of(p.x.dtype);
  Problem folded = p;
  folded.options = {};
  folded.x.sizes = x_sizes;
  folded.w.sizes = w_sizes;
  if (cudnn::known_missing(key_of(ctx, folded, kLast))) return false;
  const Workspace x_memory = ctx.workspace(static_cast<std::size_t>(element_count(x_sizes)) * element),
                  w_memory = ctx.workspace(static_cast<std::size_t>(element_count(w_sizes)) * element);
  const View x = view_in(x_memory.data(), p.x, x_sizes, kLast), w = view_in(w_memory.data(), p.w, w_sizes, kLast);
  stem::fold_input(ctx, x, p.x, p.options);
  if (p.pass == Pass::forward) stem::fold_weight(ctx, w, p.w);
  folded.x = x;
  folded.w = w;
  if (!run_in(ctx, folded, kLast)) return false;
  if (p.pass == Pass::weight) stem::unfold_weight(ctx, writable(p.w), w);
  return true;
}

/// Milliseconds of one run; negative when cuDNN cannot. The first run, not counted, chooses the plan.
template <class F>
double time_of(const Context& ctx, F&& attempt) {
  constexpr int kRuns = 3;
  if (!attempt()) return -1;
  apex::cuda::Event start(true), end(true);
  start.record(ctx);
  for (int i = 0; i < kRuns; ++i) attempt();
  end.record(ctx);
  end.synchronize();
  return start.milliseconds_to(end) / kRuns;
}

/// Folded unless timing, where it is allowed, has shown the plain way to be faster.
bool run_stem(const Context& ctx, const Problem& p) {
  static auto& timing = *new std::mutex;  // one thread times at a time
  const auto key = key_of(ctx, p, kLast);
  const std::lock_guard lock(timing);
  auto plain_first = cudnn::plain_stem_is_faster(ctx, key);
  if (!plain_first && plan_choice() == PlanChoice::timed && !deterministic() && !apex::cuda::capturing(ctx)) {
    const double plain = time_of(ctx, [&] { return run(ctx, p); }),
                 folded = time_of(ctx, [&] { return run_folded(ctx, p); });
    plain_first = plain >= 0 && (folded < 0 || plain < folded);
    cudnn::keep_plain_stem_is_faster(key, *plain_first);
  }
  if (plain_first.value_or(false) && run(ctx, p)) return true;
  return run_folded(ctx, p) || run(ctx, p);
}

/// db = sum of dy over all but the channel.
void bias_gradient(const Context& ctx, const View& db, const ConstView& dy) {
  View row = db;
  row.sizes = {1, dy.size(1), 1, 1};
  row.strides = {0, db.stride(0), 0, 0};
  cuda::reduce(ctx, row, dy, ReduceOp::sum);
}

}  // namespace

void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                    const Conv2dOptions& options) {
  if (y.numel() == 0) return;
  const Problem p{Pass::forward, x, w, y, bias, options};
  if (x.dtype != DType::f64) {
    if (stem::applies(x, w, y, options) ? run_stem(ctx, p) : run(ctx, p)) return;
  }
  direct::forward(ctx, y, x, w, bias, options);
}

void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                          const Conv2dOptions& options) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) {
    if (bias.defined()) return copy(ctx, dx, along_channels(bias));
    return fill(ctx, dx, 0.0);
  }
  if (dx.dtype != DType::f64 && run(ctx, {Pass::data, dx, w, dy, bias, options})) return;
  direct::backward_data(ctx, dx, dy, w, bias, options);
}

void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options) {
  if (db.defined()) bias_gradient(ctx, db, dy);
  if (!dw.defined()) return;
  if (dy.numel() == 0) return fill(ctx, dw, 0.0);
  const Problem p{Pass::weight, x, dw, dy, {}, options};
  if (dw.dtype != DType::f64) {
    if (stem::applies(x, dw, dy, options) ? run_stem(ctx, p) : run(ctx, p)) return;
  }
  direct::backward_weight(ctx, dw, dy, x, options);
}

}  // namespace apex::kernels::cuda
