// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor.hpp"

#include "multi_tensor_checks.hpp"
#include "multi_tensor_impl.hpp"

namespace apex::kernels {

using namespace lists;

void multi_tensor_scale(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t chunk_size) {
  constexpr const char* op = "multi_tensor_scale";
  check_flag(op, ctx, flag);
  check_chunk(op, chunk_size);
  check_whole_list(op, ctx, "in", in);
  check_whole_list(op, ctx, "out", out);
  check_matches(op, "out", out, "in", in);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::multi_tensor_scale(ctx, flag, out, in, scale, chunk_size);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::multi_tensor_scale(ctx, flag, out, in, scale, chunk_size);
  }
  throw_not_built(op, ctx.device);
}

void multi_tensor_axpby(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check, std::int64_t chunk_size) {
  constexpr const char* op = "multi_tensor_axpby";
  check_flag(op, ctx, flag);
  check_chunk(op, chunk_size);
  check_whole_list(op, ctx, "x", x);
  check_whole_list(op, ctx, "y", y);
  check_whole_list(op, ctx, "out", out);
  check_matches(op, "y", y, "x", x);
  check_matches(op, "out", out, "x", x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::multi_tensor_axpby(ctx, flag, out, x, y, a, b, check, chunk_size);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::multi_tensor_axpby(ctx, flag, out, x, y, a, b, check, chunk_size);
  }
  throw_not_built(op, ctx.device);
}

void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size) {
  constexpr const char* op = "multi_tensor_l2norm";
  check_flag(op, ctx, flag);
  check_chunk(op, chunk_size);
  check_whole_list(op, ctx, "x", x);
  check_given(op, ctx, "norm", norm);
  check_dtype(op, "norm", norm, x.empty() ? norm.dtype : accum_dtype(x[0].dtype));
  check_wide_floating(op, "norm", norm);
  if (norm.numel() != 1) fail(Kind::argument, concat(op, ": norm has sizes ", norm.sizes, ", wanted one element"));
  check_optional(op, ctx, "per_tensor", per_tensor);
  if (per_tensor.defined()) {
    check_dtype(op, "per_tensor", per_tensor, norm.dtype);
    check_vector(op, "per_tensor", per_tensor, static_cast<std::int64_t>(x.size()));
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::multi_tensor_l2norm(ctx, flag, norm, per_tensor, x, chunk_size);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::multi_tensor_l2norm(ctx, flag, norm, per_tensor, x, chunk_size);
  }
  throw_not_built(op, ctx.device);
}

void multi_tensor_sgd(const Context& ctx, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options) {
  constexpr const char* op = "multi_tensor_sgd";
  check_flag(op, ctx, flag);
  check_chunk(op, options.chunk_size);
  check_scalar(op, ctx, "lr_on_device", options.lr_on_device, DType::f64);
  check_scalar(op, ctx, "inv_scale", options.inv_scale);
  check_scalar(op, ctx, "found_inf", options.found_inf);
  check_whole_list(op, ctx, "params", params);
  check_whole_list(op, ctx, "grads", grads);
  check_matches(op, "grads", grads, "params", params);
  check_precision(op, "grads", grads, params);
  if (options.momentum != 0) {
    check_whole_list(op, ctx, "momenta", momenta);
    check_matches(op, "momenta", momenta, "params", params);
    if (!momenta.empty()) check_dtype(op, "momenta", momenta[0], {params[0].dtype, accum_dtype(params[0].dtype)});
    if (first_run.size() != params.size())
      fail(Kind::argument, concat(op, ": ", first_run.size(), " first_run flags and ", params.size(), " params"));
  }
  if (!copies.empty()) {
    check_whole_list(op, ctx, "copies", copies);
    check_matches(op, "copies", copies, "params", params);
    check_dtype(op, "copies", copies[0], {DType::f16, DType::bf16});
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::multi_tensor_sgd(ctx, flag, params, momenta, copies, grads, first_run, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::multi_tensor_sgd(ctx, flag, params, momenta, copies, grads, first_run, options);
  }
  throw_not_built(op, ctx.device);
}

namespace {
template <class V>
void check_flat(const char* op, const Context& ctx, const ConstView& flat, std::span<const V> tensors) {
  check_list(op, ctx, "tensors", tensors);
  std::int64_t total = 0;
  for (const auto& t : tensors) total += t.numel();
  check_given(op, ctx, "flat", flat);
  check_floating(op, "flat", flat);
  check_vector(op, "flat", flat, total);
}
}  // namespace

void flatten(const Context& ctx, View flat, std::span<const ConstView> tensors, double scale) {
  check_flat("flatten", ctx, flat, tensors);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::flatten(ctx, flat, tensors, scale);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::flatten(ctx, flat, tensors, scale);
  }
  throw_not_built("flatten", ctx.device);
}

void unflatten(const Context& ctx, std::span<const View> tensors, ConstView flat, double scale) {
  check_flat("unflatten", ctx, flat, tensors);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::unflatten(ctx, tensors, flat, scale);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::unflatten(ctx, tensors, flat, scale);
  }
  throw_not_built("unflatten", ctx.device);
}

}  // namespace apex::kernels
