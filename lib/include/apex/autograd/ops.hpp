// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "apex/autograd/record.hpp"
#include "apex/core/profile.hpp"
#include "apex/core/tensor.hpp"

/// The op table (one row per functional op) and the scope every functional op opens.
namespace apex {

enum class Op : std::uint8_t {
  add,
  sub,
  mul,
  div,
  minimum,
  maximum,
  scale,
  where,
  compare,
  neg,
  abs,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  tanh,
  sigmoid,
  relu,
  erf,
  gelu,
  silu,
  leaky_relu,
  elu,
  softplus,
  clamp,
  hardtanh,
  log_sigmoid,
  sum,
  mean,
  max,
  min,
  any,
  all,
  argmax,
  argmin,
  cumsum,
  reshape,
  permute,
  narrow,
  slice,
  flip,
  pad,
  cat,
  expand,
  contiguous,
  cast,
  to_device,
  gather,
  scatter_add,
  index_select,
  embedding,
  one_hot,
  sort,
  topk,
  matmul,
  baddbmm,
  linear,
  conv2d,
  conv_transpose2d,
  conv2d_weight,
  batch_norm,
  batch_norm_relu,
  batch_norm_add_relu,
  max_pool2d,
  avg_pool2d,
  adaptive_avg_pool2d,
  softmax,
  log_softmax,
  cross_entropy,
  nll_loss,
  mse_loss,
  l1_loss,
  smooth_l1_loss,
  huber_loss,
  binary_cross_entropy,
  binary_cross_entropy_with_logits,
  kl_div,
  dropout,
  count_,
};

/// What mixed precision does with an op's floating inputs.
enum class AmpClass : std::uint8_t {
  unset,    ///< no row may have it
  lower,    ///< runs in 16 bits
  full,     ///< runs in f32
  promote,  ///< inputs of different types are brought to the widest
  keep,     ///< takes what it gets
};

/// A set of dtypes as bits.
using DTypeSet = std::uint16_t;
constexpr DTypeSet bit(DType dtype) { return static_cast<DTypeSet>(1u << static_cast<unsigned>(dtype)); }
constexpr DTypeSet kWide = bit(DType::f64) | bit(DType::f32);
constexpr DTypeSet kFloating = kWide | bit(DType::f16) | bit(DType::bf16);
constexpr DTypeSet kSigned = kFloating | bit(DType::i64) | bit(DType::i32);
constexpr DTypeSet kNumbers = kSigned | bit(DType::u8);
constexpr DTypeSet kAnyDType = 0xff;

struct OpRow {
  Op op;
  const char* name;
  AmpClass amp;
  bool double_differentiable;  ///< its backward is made of ops that can be differentiated again
  DTypeSet dtypes;             ///< of the first input; anything else throws Kind::unsupported
};

inline constexpr OpRow kOps[] = {
    {Op::add, "add", AmpClass::promote, true, kNumbers},
    {Op::sub, "sub", AmpClass::promote, true, kNumbers},
    {Op::mul, "mul", AmpClass::promote, true, kNumbers},
    {Op::div, "div", AmpClass::promote, true, kFloating},
    {Op::minimum, "minimum", AmpClass::promote, true, kNumbers},
    {Op::maximum, "maximum", AmpClass::promote, true, kNumbers},
    {Op::scale, "scale", AmpClass::keep, true, kFloating},
    {Op::where, "where", AmpClass::promote, true, bit(DType::boolean)},
    {Op::compare, "compare", AmpClass::promote, false, kAnyDType},
    {Op::neg, "neg", AmpClass::keep, true, kSigned},
    {Op::abs, "abs", AmpClass::keep, true, kSigned},
    {Op::exp, "exp", AmpClass::full, true, kFloating},
    {Op::log, "log", AmpClass::full, true, kFloating},
    {Op::sqrt, "sqrt", AmpClass::keep, true, kFloating},
    {Op::rsqrt, "rsqrt", AmpClass::full, true, kFloating},
    {Op::reciprocal, "reciprocal", AmpClass::full, true, kFloating},
    {Op::square, "square", AmpClass::keep, true, kSigned},
    {Op::tanh, "tanh", AmpClass::keep, true, kFloating},
    {Op::sigmoid, "sigmoid", AmpClass::keep, true, kFloating},
    {Op::relu, "relu", AmpClass::keep, true, kSigned},
    {Op::erf, "erf", AmpClass::keep, true, kFloating},
    {Op::gelu, "gelu", AmpClass::keep, true, kFloating},
    {Op::silu, "silu", AmpClass::keep, true, kFloating},
    {Op::leaky_relu, "leaky_relu", AmpClass::keep, true, kFloating},
    {Op::elu, "elu", AmpClass::keep, true, kFloating},
    {Op::softplus, "softplus", AmpClass::full, true, kFloating},
    {Op::clamp, "clamp", AmpClass::keep, true, kFloating},
    {Op::hardtanh, "hardtanh", AmpClass::keep, true, kFloating},
    {Op::log_sigmoid, "log_sigmoid", AmpClass::full, true, kFloating},
    {Op::sum, "sum", AmpClass::full, true, kAnyDType},
    {Op::mean, "mean", AmpClass::keep, true, kFloating},
    {Op::max, "max", AmpClass::keep, true, kAnyDType},
    {Op::min, "min", AmpClass::keep, true, kAnyDType},
    {Op::any, "any", AmpClass::keep, false, kAnyDType},
    {Op::all, "all", AmpClass::keep, false, kAnyDType},
    {Op::argmax, "argmax", AmpClass::keep, false, kAnyDType},
    {Op::argmin, "argmin", AmpClass::keep, false, kAnyDType},
    {Op::cumsum, "cumsum", AmpClass::full, true, kAnyDType},
    {Op::reshape, "reshape", AmpClass::keep, true, kAnyDType},
    {Op::permute, "permute", AmpClass::keep, true, kAnyDType},
    {Op::narrow, "narrow", AmpClass::keep, true, kAnyDType},
    {Op::slice, "slice", AmpClass::keep, true, kAnyDType},
    {Op::flip, "flip", AmpClass::keep, true, kAnyDType},
    {Op::pad, "pad", AmpClass::keep, true, kAnyDType},
    {Op::cat, "cat", AmpClass::promote, true, kAnyDType},
    {Op::expand, "expand", AmpClass::keep, true, kAnyDType},
    {Op::contiguous, "contiguous", AmpClass::keep, true, kAnyDType},
    {Op::cast, "cast", AmpClass::keep, true, kAnyDType},
    {Op::to_device, "to_device", AmpClass::keep, true, kAnyDType},
    {Op::gather, "gather", AmpClass::keep, true, kAnyDType},
    {Op::scatter_add, "scatter_add", AmpClass::promote, true, kSigned},
    {Op::index_select, "index_select", AmpClass::keep, true, kAnyDType},
    {Op::embedding, "embedding", AmpClass::keep, true, kFloating},
    {Op::one_hot, "one_hot", AmpClass::keep, false, bit(DType::i64) | bit(DType::i32)},
    {Op::sort, "sort", AmpClass::keep, true, kAnyDType},
    {Op::topk, "topk", AmpClass::keep, true, kAnyDType},
    {Op::matmul, "matmul", AmpClass::lower, true, kFloating},
    {Op::baddbmm, "baddbmm", AmpClass::lower, true, kFloating},
    {Op::linear, "linear", AmpClass::lower, true, kFloating},
    {Op::conv2d, "conv2d", AmpClass::lower, true, kFloating},
    {Op::conv_transpose2d, "conv_transpose2d", AmpClass::lower, true, kFloating},
    {Op::conv2d_weight, "conv2d_weight", AmpClass::lower, true, kFloating},
    {Op::batch_norm, "batch_norm", AmpClass::keep, false, kFloating},
    {Op::batch_norm_relu, "batch_norm_relu", AmpClass::keep, false, kFloating},
    {Op::batch_norm_add_relu, "batch_norm_add_relu", AmpClass::keep, false, kFloating},
    {Op::max_pool2d, "max_pool2d", AmpClass::keep, false, kFloating},
    {Op::avg_pool2d, "avg_pool2d", AmpClass::keep, true, kFloating},
    {Op::adaptive_avg_pool2d, "adaptive_avg_pool2d", AmpClass::keep, true, kFloating},
    {Op::softmax, "softmax", AmpClass::full, true, kFloating},
    {Op::log_softmax, "log_softmax", AmpClass::full, true, kFloating},
    {Op::cross_entropy, "cross_entropy", AmpClass::full, true, kFloating},
    {Op::nll_loss, "nll_loss", AmpClass::full, true, kFloating},
    {Op::mse_loss, "mse_loss", AmpClass::full, true, kFloating},
    {Op::l1_loss, "l1_loss", AmpClass::full, true, kFloating},
    {Op::smooth_l1_loss, "smooth_l1_loss", AmpClass::full, true, kFloating},
    {Op::huber_loss, "huber_loss", AmpClass::full, true, kFloating},
    {Op::binary_cross_entropy, "binary_cross_entropy", AmpClass::full, true, kFloating},
    {Op::binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits", AmpClass::full, true, kFloating},
    {Op::kl_div, "kl_div", AmpClass::full, true, kFloating},
    {Op::dropout, "dropout", AmpClass::keep, true, kFloating},
};

constexpr const OpRow& row_of(Op op) { return kOps[static_cast<std::size_t>(op)]; }

namespace detail {
constexpr bool table_follows_enum() {
  if (std::size(kOps) != static_cast<std::size_t>(Op::count_)) return false;
  for (std::size_t i = 0; i < std::size(kOps); ++i)
    if (kOps[i].op != static_cast<Op>(i)) return false;
  return true;
}
constexpr bool rows_are_complete() {
  for (const OpRow& row : kOps)
    if (row.name == nullptr || row.amp == AmpClass::unset || row.dtypes == 0) return false;
  return true;
}
}  // namespace detail
static_assert(detail::table_follows_enum(), "every Op has its row in kOps, in the order of the enum");
static_assert(detail::rows_are_complete(), "every row in kOps has a name, an amp class and dtypes");

/// Opened first in every functional op, with the op's tensors (undefined ones are skipped, except the first). Checks
/// that they share a device and that the first one's dtype is in the op's row; it is where inputs are cast (hence the
/// mutable handles): floating ones of an op of class promote to the widest type among them (f16 with bf16: f32), by a
/// recorded cast, so that gradients come back in their own types. It is the op's range in a profiler's timeline.
class OpScope {
 public:
  /// @throws Kind::argument for an undefined first input or mixed devices; Kind::unsupported for a dtype that
  ///         the row does not list
  OpScope(Op op, std::initializer_list<Tensor*> inputs)
      : OpScope(op, std::span<Tensor* const>(inputs.begin(), inputs.size())) {}
  OpScope(Op op, std::span<Tensor* const> inputs);
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

  const OpRow& row() const { return row_; }
  /// apex::record under the row's name and double differentiability.
  Tensor record(Tensor output, std::vector<Tensor> inputs, std::vector<Saved> saved, BackwardFunction backward,
                bool takes_terms = false) const;

 private:
  const OpRow& row_;
  ProfileRange range_{row_.name};
};

/// While it lives, `call` sees the inputs of every op, on the thread that runs it, before the op does anything: for
/// what must be there when an op reads it (parameters that are still on their way). Make and destroy it while no other
/// thread runs ops. It may run no op itself.
class BeforeOps {
 public:
  explicit BeforeOps(std::function<void(std::span<Tensor* const> inputs)> call);
  BeforeOps(const BeforeOps&) = delete;
  BeforeOps& operator=(const BeforeOps&) = delete;
  ~BeforeOps();

 private:
  std::function<void(std::span<Tensor* const>)> call_;
};

}  // namespace apex
