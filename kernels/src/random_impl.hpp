// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/random.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void uniform(const Context& ctx, View out, double low, double high, const RandomState& state);
void normal(const Context& ctx, View out, double mean, double std, const RandomState& state);
void bernoulli(const Context& ctx, View out, double p, const RandomState& state);
void dropout(const Context& ctx, View y, View mask, ConstView x, double p, const RandomState& state);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void uniform(const Context& ctx, View out, double low, double high, const RandomState& state);
void normal(const Context& ctx, View out, double mean, double std, const RandomState& state);
void bernoulli(const Context& ctx, View out, double p, const RandomState& state);
void dropout(const Context& ctx, View y, View mask, ConstView x, double p, const RandomState& state);
}  // namespace apex::kernels::cuda
