// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/core/context.hpp"
#include "conv_graph.hpp"

// The plans of this process: chosen on first use, kept for its lifetime, exported and imported (backend.hpp).

namespace apex::kernels::cuda::cudnn {

/// Runs the convolution with the plan of its key, choosing one first where there is none or where a better choice is
/// due. Every buffer the pass writes may be written several times. @returns false when cuDNN has no plan for the key
bool run_conv(const Context& ctx, const ConvKey& key, const Buffers& buffers);

/// Whether run_conv is already known to return false.
bool known_missing(const ConvKey& key);

/// Whether timing, in this process or in the one that plans were imported from, has shown a first layer's plain
/// convolution to be faster than the folded one (conv_stem.hpp); kept, exported and imported like a plan.
std::optional<bool> plain_stem_is_faster(const Context& ctx, const ConvKey& key);
void keep_plain_stem_is_faster(const ConvKey& key, bool is);

}  // namespace apex::kernels::cuda::cudnn
