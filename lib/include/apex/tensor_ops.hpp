// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/tensor.hpp"

/// Making tensors and writing into them. None of these records a gradient.
namespace apex {

Tensor zeros(const Dims& sizes, DType dtype = DType::f32, Device device = kCpu,
             MemoryFormat format = MemoryFormat::contiguous);
Tensor ones(const Dims& sizes, DType dtype = DType::f32, Device device = kCpu,
            MemoryFormat format = MemoryFormat::contiguous);
Tensor full(const Dims& sizes, double value, DType dtype = DType::f32, Device device = kCpu,
            MemoryFormat format = MemoryFormat::contiguous);
/// start, start + step, ...: `count` numbers. @throws Kind::argument for a negative count
Tensor arange(std::int64_t count, DType dtype = DType::i64, Device device = kCpu, double start = 0.0,
              double step = 1.0);
/// The strides of `like` where it is dense.
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
/// A copy with its own storage and the same strides (a dense layout where `t` has gaps).
Tensor clone(const Tensor& t);
/// A copy in the given memory format (row-major for ranks that have no other), or a view of the same storage when the
/// elements already lie so. Dimensions of size 1 get the format's strides too, so memory_format() of the result is it.
Tensor to_format(const Tensor& t, MemoryFormat format);

/// In-place writes. They raise the version, so a backward that saved the tensor notices.
/// @throws Kind::state when grad mode is on and `t` requires a gradient: write under a NoGradGuard, or use detach()
void copy_(const Tensor& t, const Tensor& source);  ///< t = source, converted to t's dtype; source broadcasts, and
                                                    ///< may share memory with t
void fill_(const Tensor& t, double value);
inline void zero_(const Tensor& t) { fill_(t, 0.0); }
void add_(const Tensor& t, const Tensor& other, double alpha = 1.0);  ///< t += alpha * other, one dtype
void mul_(const Tensor& t, double factor);

}  // namespace apex
