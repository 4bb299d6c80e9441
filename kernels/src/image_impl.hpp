// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>

#include "apex/kernels/image.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels {

/// The outputs of one axis that a window shows: window positions [first, first + count), which are positions
/// offset + first on of the resized axis.
struct Visible {
  int first = 0;
  int count = 0;
};
inline Visible visible(std::int64_t offset, std::int64_t window, std::int64_t resized) {
  const std::int64_t begin = std::clamp<std::int64_t>(-offset, 0, window);
  const std::int64_t end = std::clamp<std::int64_t>(resized - offset, begin, window);
  return {static_cast<int>(begin), static_cast<int>(end - begin)};
}

}  // namespace apex::kernels

namespace apex::kernels::cpu {
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);
void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);
void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures);
}  // namespace apex::kernels::cuda
