// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

#include "apex/io/image/image.hpp"

namespace apex::io {

/// Resizing of a picture of which only a part is wanted, or at hand.
struct ResizeWindow {
  int width = 0;  ///< of the whole result
  int height = 0;
  CropBox window;         ///< the part of the result that is made
  bool mirrored = false;  ///< left and right of that part exchanged
};

/// The box of the picture that the window depends on.
CropBox resize_reach(int source_width, int source_height, const ResizeWindow& wanted);

/// The window of what resize_bilinear makes of the whole picture, by the same arithmetic. `source` holds its reach.
/// Rows of `out` are `stride` bytes apart.
void resize_window(const PartView& source, const ResizeWindow& wanted, std::uint8_t* out, std::ptrdiff_t stride);

}  // namespace apex::io
