// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

#ifdef __CUDACC__
#define APEX_HOST_DEVICE __host__ __device__
#else
#define APEX_HOST_DEVICE
#endif

namespace apex {

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"):
/// ten rounds over a 128-bit counter under a 64-bit key. A pure function, so the value at any position can be had
/// alone, on the host and on a device alike.
struct Philox4x32 {
  struct Counter {
    std::uint32_t v[4];
  };
  struct Key {
    std::uint32_t v[2];
  };

  APEX_HOST_DEVICE static constexpr Counter generate(Counter counter, Key key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter.v[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter.v[2];
      counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.v[1] ^ key.v[0], static_cast<std::uint32_t>(p1),
                  static_cast<std::uint32_t>(p0 >> 32) ^ counter.v[3] ^ key.v[1], static_cast<std::uint32_t>(p0)}};
      key.v[0] += 0x9E3779B9u;
      key.v[1] += 0xBB67AE85u;
    }
    return counter;
  }

  /// Four words for (seed, hi, lo): key = seed, counter = {lo low, lo high, hi low, hi high}.
  APEX_HOST_DEVICE static constexpr Counter at(std::uint64_t seed, std::uint64_t hi, std::uint64_t lo) {
    return generate({{static_cast<std::uint32_t>(lo), static_cast<std::uint32_t>(lo >> 32),
                      static_cast<std::uint32_t>(hi), static_cast<std::uint32_t>(hi >> 32)}},
                    {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
  }

  /// 32 random bits to [0, 1): the upper 24 bits, exact in float.
  APEX_HOST_DEVICE static constexpr float uniform(std::uint32_t word) {
    return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
  }
};

}  // namespace apex
