// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Gradients of one model spread over ranks: the norm is that of all.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "apex/autograd.hpp"
#include "apex/contrib/clip_grad.hpp"
#include "apex/tensor_ops.hpp"

namespace apex {
namespace {

TEST(ClipGradRanks, TheNormIsThatOfAllRanks) {
  const auto world = dist::ProcessGroup::world();
  const double n = world.size();
  for (const double type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const bool empty_rank : {false, true}) {
      // Rank r holds one gradient of r + 1; where asked, the last one holds none.
      const double count = empty_rank ? n - 1 : n;
      double sum = 0;
      for (double r = 1; r <= count; ++r) sum = std::isinf(type) ? std::max(sum, r) : sum + std::pow(r, type);
      const double want = std::isinf(type) ? sum : std::pow(sum, 1 / type);
      const Tensor p = set_requires_grad(full({1}, 1));
      const bool holds = world.rank() < count;
      if (holds) set_grad(p, full({1}, world.rank() + 1));
      const Tensor norm = contrib::clip_grad::clip_grad_norm_(p, 0.5, {.norm_type = type, .group = world});
      EXPECT_NEAR(norm.item(), want, 1e-5 * want);
      if (holds) {
        EXPECT_NEAR(grad(p).item(), (world.rank() + 1) * 0.5 / want, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace apex
