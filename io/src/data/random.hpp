// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

#include "apex/core/philox.hpp"

namespace apex::io {

/// Purposes keep their Philox counters apart: the top byte of the counter's high half. Masks of dropout and the like
/// have a row index there, which never gets that large.
enum class Draw : std::uint64_t { permutation = 0xA1, augmentation = 0xA2, pattern = 0xA3, noise = 0xA4 };

/// Four words for (seed, purpose, hi, lo), hi below 2^56.
inline std::array<std::uint32_t, 4> draw(std::uint64_t seed, Draw purpose, std::uint64_t hi, std::uint64_t lo) {
  return std::to_array(Philox4x32::at(seed, static_cast<std::uint64_t>(purpose) << 56 | hi, lo).v);
}

/// floor(word * n / 2^32): a whole number below n.
inline int below(std::uint32_t word, int n) {
  return static_cast<int>((std::uint64_t{word} * static_cast<std::uint64_t>(n)) >> 32);
}

/// 32 bits to [0, 1), exact in double.
inline double unit(std::uint32_t word) { return word * 0x1p-32; }

}  // namespace apex::io
