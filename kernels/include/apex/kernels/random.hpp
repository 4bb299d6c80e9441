// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Random numbers are a pure function of (seed, offset, position): the same on every backend, for every thread count and
// memory format. Position e is the row-major index of an element; its word is lane e mod 4 of
// Philox4x32-10(counter = {lo32(e/4), hi32(e/4), 0x80000000, lo32(offset)}, key = {lo32(seed), hi32(seed) ^
// hi32(offset)}). A generator advances offset by one per call.

namespace apex::kernels {

struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  /// Row i of dimension 0 draws as row first_row + i * row_stride of the whole: global sample indices, so that a mask
  /// does not depend on how samples are spread over ranks.
  std::int64_t first_row = 0;
  std::int64_t row_stride = 1;
  /// One number on ctx.device, or null: it is added to `offset` when the kernel runs, so that a captured graph draws
  /// anew at each launch.
  const std::int64_t* base = nullptr;
};

/// out = low + (high - low) u, u from the upper 24 bits of the word, in [0, 1). Any floating dtype and strides; the
/// same numbers in every dtype up to its rounding (which may reach `high`).
void uniform(const Context& ctx, View out, double low, double high, const RandomState& state);

/// Normal numbers by Box and Muller (1958): words (w0, w1) of positions (2m, 2m + 1) give
///   r = sqrt(-2 ln((w0 + 1) / 2^32)), out = mean + std r cos(2 pi w1 / 2^32), then the same with sin,
/// formed in f64, then converted as copy converts. The logarithm, sine and cosine are those of the backend, which may
/// differ in the last bits of f64: between backends normal numbers agree to one unit in the last place, all others bit
/// by bit.
/// @throws Kind::argument for std < 0
void normal(const Context& ctx, View out, double mean, double std, const RandomState& state);

/// out = word < round(p 2^32): 1 with probability p. Any dtype.
/// @throws Kind::argument for p outside [0, 1]
void bernoulli(const Context& ctx, View out, double p, const RandomState& state);

/// y = keep ? x / (1 - p) : 0 with keep = word < round((1 - p) 2^32). Its own backward: dx = dropout(dy) of the same
/// state.
/// @param y     floating; may be x itself
/// @param mask  boolean, y's sizes, gets keep; may be undefined
/// @throws Kind::argument for p outside [0, 1]. p == 1 gives zeros
void dropout(const Context& ctx, View y, View mask, ConstView x, double p, const RandomState& state);

}  // namespace apex::kernels
