// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// What a tensor of indices is held against.
struct IndexBounds {
  const char* op;
  const char* what;    ///< "index", "label"
  std::int64_t below;  ///< right ones are 0 to below - 1
  std::optional<std::int64_t> ignore = {};

  bool fits(std::int64_t index) const { return (index >= 0 && index < below) || (ignore && index == *ignore); }
};

/// Throws for the element of `index` at row-major position `flat`.
[[noreturn]] void throw_index_fault(const IndexBounds& bounds, const ConstView& index, std::int64_t flat,
                                    std::int64_t value);

namespace cpu {
/// @throws Kind::argument for the first wrong element in row-major order
void check_indices(const IndexBounds& bounds, const ConstView& index);
}  // namespace cpu

namespace cuda {
/// The same when data checks are on and the stream is not being captured; else nothing. Waits.
void check_indices(const Context& ctx, const IndexBounds& bounds, const ConstView& index);
}  // namespace cuda

}  // namespace apex::kernels
