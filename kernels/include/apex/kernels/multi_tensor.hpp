// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Ops over lists of tensors: one call where an optimizer or a bucket would make hundreds.
//
// Lists of one call have the same length; tensors at one index have the same element count, are dense (row-major or in
// any other order without gaps) and have the same strides up to dimensions of size 1. All tensors of a list share one
// dtype. Elements are computed in f32 (f64 for f64) whatever the storage, hyper-parameters are narrowed once, results
// are rounded once at the store. Empty lists do nothing; empty tensors keep their place. chunk_size > 0 is how many
// elements one task takes; results do not depend on it, except the last bits of norms.
// `flag` is i32 with one element, on ctx.device, never cleared here. An op that detects sets it to 1; an op that skips
// does nothing at all when it is not 0. Errors name the op, the list and the tensor's index.

namespace apex::kernels {

inline constexpr std::int64_t kDefaultChunk = 2048 * 32;

/// out = in * scale; detects: a non-finite input or a non-finite result. out may be in. Floating to floating.
void multi_tensor_scale(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> in,
                        double scale, std::int64_t chunk_size = kDefaultChunk);

/// Which inputs of axpby are looked at for non-finite values.
enum class CheckArgs { both = -1, x = 0, y = 1 };

/// out = a x + b y; detects: a non-finite value in the inputs named by `check`, or in the result when both are checked.
void multi_tensor_axpby(const Context& ctx, View flag, std::span<const View> out, std::span<const ConstView> x,
                        std::span<const ConstView> y, double a, double b, CheckArgs check = CheckArgs::both,
                        std::int64_t chunk_size = kDefaultChunk);

/// norm = sqrt(sum of squares over all tensors), per_tensor[i] = that of tensor i; detects: a chunk whose sum of
/// squares is not finite in the accumulation type.
/// @param norm        one element: f32, or f64 for f64 tensors
/// @param per_tensor  [number of tensors], norm's dtype; may be undefined
void multi_tensor_l2norm(const Context& ctx, View flag, View norm, View per_tensor, std::span<const ConstView> x,
                         std::int64_t chunk_size = kDefaultChunk);

/// Hyper-parameters of one group of SGD. The optimizer checks their ranges.
struct SgdOptions {
  double lr = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool wd_after_momentum = false;
  double scale = 1.0;     ///< gradients are multiplied by it first
  ConstView lr_on_device{};  ///< f64, one element, on ctx.device: replaces `lr`, so that a captured step can change it
  ConstView inv_scale{};  ///< f32, one element, on ctx.device: multiplies `scale`; may be undefined
  ConstView found_inf{};  ///< f32, one element, on ctx.device: not 0 skips, like the flag; may be undefined
  std::int64_t chunk_size = kDefaultChunk;
};

/// Stochastic gradient descent with momentum (Sutskever et al. 2013). Per element, with g = grad * scale:
///
///   weight_decay and not wd_after_momentum: g += weight_decay * p
///   momentum: buf = first_run ? g : momentum * buf + (1 - dampening) * g;  g = nesterov ? g + momentum * buf : buf
///   weight_decay and wd_after_momentum: g += weight_decay * p
///   p -= lr * g;  copy = p
///
/// Skips when flag or found_inf is not 0.
/// @param flag       may be undefined
/// @param params     updated; f64, f32, f16 or bf16
/// @param momenta    updated; params' dtype or f32 (f64 for f64); empty list when momentum == 0
/// @param copies     16-bit copies written after the update (model weights of f32 masters); empty list: none
/// @param grads      any floating dtype (f64 only with f64)
/// @param first_run  per tensor: 1 starts its momentum from the gradient; empty list when momentum == 0
void multi_tensor_sgd(const Context& ctx, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options);

/// Packs tensors one after another into `flat`, each in its own memory order, converted and multiplied by `scale`.
/// @param flat     [sum of element counts], stride 1, any floating dtype
/// @param tensors  dense in any order, floating; dtypes may differ
/// @throws Kind::argument when the total does not fit or a tensor has gaps
void flatten(const Context& ctx, View flat, std::span<const ConstView> tensors, double scale = 1.0);

/// The reverse: fills tensors from `flat`.
void unflatten(const Context& ctx, std::span<const View> tensors, ConstView flat, double scale = 1.0);

}  // namespace apex::kernels
