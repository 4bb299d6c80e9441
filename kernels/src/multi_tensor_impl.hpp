// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/multi_tensor.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void multi_tensor_scale(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t chunk_size);
void multi_tensor_axpby(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check, std::int64_t chunk_size);
void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size);
void multi_tensor_sgd(const Context& ctx, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options);
void flatten(const Context& ctx, View flat, std::span<const ConstView> tensors, double scale);
void unflatten(const Context& ctx, std::span<const View> tensors, ConstView flat, double scale);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void multi_tensor_scale(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t chunk_size);
void multi_tensor_axpby(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check, std::int64_t chunk_size);
void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size);
void multi_tensor_sgd(const Context& ctx, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options);
void flatten(const Context& ctx, View flat, std::span<const ConstView> tensors, double scale);
void unflatten(const Context& ctx, std::span<const View> tensors, ConstView flat, double scale);
}  // namespace apex::kernels::cuda
