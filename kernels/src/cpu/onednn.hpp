// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/conv.hpp"

// The f32 work that goes to oneDNN. The only translation unit that includes its headers is onednn.cpp, which knows both
// the 2.x and the 3.x interface. Primitives are made once per shape, layout and thread count and kept.

namespace apex::kernels::cpu::onednn {

struct SgemmShape {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0, lda = 1, ldb = 1, ldc = 1;
  float alpha = 1, beta = 0;
};

/// Row-major c[m, n] = alpha * op(a) op(b) + beta * c.
void sgemm(const SgemmShape& shape, float* c, const float* a, const float* b);

/// f32, dense NCHW or channels-last; weights dense in either format; arguments checked, nothing empty.
void conv2d_forward(const Context& ctx, const View& y, const ConstView& x, const ConstView& w, const ConstView& bias,
                    const Conv2dOptions& options);
void conv2d_backward_data(const Context& ctx, const View& dx, const ConstView& dy, const ConstView& w,
                          const Conv2dOptions& options);
/// dw is defined, db may be undefined.
void conv2d_backward_weight(const Context& ctx, const View& dw, const View& db, const ConstView& dy, const ConstView& x,
                            const Conv2dOptions& options);

}  // namespace apex::kernels::cpu::onednn
