// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// y[n,c,h,w] = (x[n,c,h,w] - mean[c]) / std[c], mean and std in units of x (0 to 255): decoded pixels to network input
/// in one pass.
///
/// @param y     [N, C, H, W] of any floating dtype, any strides
/// @param x     [N, C, H, W] u8, any strides (decoders give channels-last)
/// @param mean  C values, host
/// @param std   C values, host, > 0
/// @throws Kind::argument when shapes, dtypes, devices or the number of constants do not fit
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);

/// One picture of image_resize, and what becomes of it.
struct ImageWindow {
  ConstView image;       ///< u8 [C, h, w], any strides: interleaved, planar, or gray repeated by a stride of 0
  std::int64_t row = 0;  ///< of y
  int box_left = 0, box_top = 0, box_width = 0, box_height = 0;  ///< the part of the image that is used
  int resized_width = 0, resized_height = 0;                     ///< its size afterwards
  int left = 0, top = 0;                                         ///< the window's corner in the resized part
  bool flip = false;                                             ///< then mirrored left to right
};

/// y[row, c, i, j] = resized[c, top + i, left + j'] with j' = W - 1 - j if flip, else j, and 0 where that lies outside
/// of the resized part. Resizing is bilinear with antialiasing: columns, then rows, by TriangleFilter (core), each pass
/// rounded to a byte. All devices give the same bytes, and those of io's resize_bilinear.
///
/// @param y         [N, C, H, W] u8, any strides; rows that no picture names stay as they are
/// @param pictures  each with its own size; no two with the same row. May be empty.
/// @throws Kind::argument when shapes, dtypes or devices do not fit, a row is not y's or comes twice, a box is empty or
///         reaches outside of its image, or a resized size is below 1
void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures);

}  // namespace apex::kernels
