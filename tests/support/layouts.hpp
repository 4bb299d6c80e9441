// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/on_device.hpp"

// Operands of element-wise ops in every way that a GPU takes a path of its own for.

namespace apex::test {

/// In one piece at an aligned address, with a rest behind the last whole pack; rows of whole packs out of a wider
/// block; one element past an aligned address.
enum class Lie { whole, rows, offset };
inline constexpr Lie kLies[] = {Lie::whole, Lie::rows, Lie::offset};

inline const char* name_of(Lie lie) { return lie == Lie::whole ? " whole" : lie == Lie::rows ? " rows" : " offset"; }
inline Dims sizes_of(Lie lie) { return lie == Lie::rows ? Dims{6, 64} : Dims{5, 77}; }

/// A tensor of sizes_of(lie) with these values in row-major order.
inline Tensor laid(Lie lie, DType dtype, const std::function<double(std::int64_t)>& value) {
  const Dims sizes = sizes_of(lie);
  if (lie == Lie::whole) return from_function(sizes, dtype, device(), value);
  if (lie == Lie::offset) return misaligned(from_function(sizes, dtype, device(), value));
  const Tensor block = from_function({sizes[0], 2 * sizes[1]}, dtype, device(), [](std::int64_t) { return 1.0; });
  const Tensor t = views::narrow(block, 1, sizes[1], sizes[1]);
  assign(t, value);
  return t;
}
inline Tensor laid_uniform(Lie lie, DType dtype, std::uint64_t seed, double low = -1, double high = 1) {
  return laid(lie, dtype,
              [=](std::int64_t i) { return low + (high - low) * unit(seed, static_cast<std::uint64_t>(i)); });
}
/// Where a result goes: in one piece, filled with what no result is.
inline Tensor result_of(Lie lie, DType dtype) {
  const Tensor t = poisoned(make(sizes_of(lie), dtype));
  if (!is_floating(dtype) && dtype != DType::boolean) assign(t, [](std::int64_t) { return 113.0; });
  return t;
}

}  // namespace apex::test
