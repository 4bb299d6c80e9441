// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conformance/flip.hpp"

#include "apex/kernels/batch_norm.hpp"
#include "apex/kernels/conv.hpp"
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/matmul.hpp"
#include "apex/kernels/pool.hpp"

namespace {

apex::test::Flip wanted;
int calls = 0;
bool flipped = false;

void maybe_flip(const apex::Context& ctx, const char* output, const apex::View& view) {
  if (!view.defined() || wanted.output != output || calls++ != wanted.call) return;
  apex::kernels::unary(ctx, view, view, apex::kernels::UnaryOp::neg);
  flipped = true;
}

}  // namespace

namespace apex::test {

FlipGuard::FlipGuard(const Flip& flip) {
  wanted = flip;
  calls = 0;
  flipped = false;
}
FlipGuard::~FlipGuard() { wanted = {}; }
bool FlipGuard::happened() const { return flipped; }

}  // namespace apex::test

// The linker sends every call of KERNEL to __wrap_KERNEL, and of __real_KERNEL to the kernel itself. CMakeLists.txt
// reads the names from this file. A kernel whose signature changes is no longer wrapped: FlipGuard::happened() tells.
namespace apex::kernels {

using CrossEntropyBackward = void(const Context&, View, ConstView, ConstView, ConstView, ConstView,
                                  const CrossEntropyOptions&);
CrossEntropyBackward real_cross_entropy asm(
    "__real__ZN4apex7kernels22cross_entropy_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_S5_S5_RKNS0_19CrossEntropyOptionsE");
CrossEntropyBackward wrap_cross_entropy asm(
    "__wrap__ZN4apex7kernels22cross_entropy_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_S5_S5_RKNS0_19CrossEntropyOptionsE");
void wrap_cross_entropy(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                        ConstView labels, const CrossEntropyOptions& options) {
  real_cross_entropy(ctx, dlogits, dloss, logits, lse, labels, options);
  maybe_flip(ctx, "cross_entropy_backward.dlogits", dlogits);
}

void real_linear_data(const Context&, View, ConstView, ConstView) asm(
    "__real__ZN4apex7kernels20linear_backward_data"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_");
void wrap_linear_data(const Context&, View, ConstView, ConstView) asm(
    "__wrap__ZN4apex7kernels20linear_backward_data"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_");
void wrap_linear_data(const Context& ctx, View dx, ConstView dy, ConstView w) {
  real_linear_data(ctx, dx, dy, w);
  maybe_flip(ctx, "linear_backward_data.dx", dx);
}

void real_linear_weight(const Context&, View, View, ConstView, ConstView) asm(
    "__real__ZN4apex7kernels22linear_backward_weight"
    "ERKNS_7ContextENS_4ViewES4_NS_9ConstViewES5_");
void wrap_linear_weight(const Context&, View, View, ConstView, ConstView) asm(
    "__wrap__ZN4apex7kernels22linear_backward_weight"
    "ERKNS_7ContextENS_4ViewES4_NS_9ConstViewES5_");
void wrap_linear_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x) {
  real_linear_weight(ctx, dw, db, dy, x);
  maybe_flip(ctx, "linear_backward_weight.dw", dw);
  maybe_flip(ctx, "linear_backward_weight.db", db);
}

void real_adaptive_pool(const Context&, View, ConstView) asm(
    "__real__ZN4apex7kernels28adaptive_avg_pool2d_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewE");
void wrap_adaptive_pool(const Context&, View, ConstView) asm(
    "__wrap__ZN4apex7kernels28adaptive_avg_pool2d_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewE");
void wrap_adaptive_pool(const Context& ctx, View dx, ConstView dy) {
  real_adaptive_pool(ctx, dx, dy);
  maybe_flip(ctx, "adaptive_avg_pool2d_backward.dx", dx);
}

void real_max_pool(const Context&, View, ConstView, ConstView, const Pool2dOptions&) asm(
    "__real__ZN4apex7kernels19max_pool2d_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_RKNS0_13Pool2dOptionsE");
void wrap_max_pool(const Context&, View, ConstView, ConstView, const Pool2dOptions&) asm(
    "__wrap__ZN4apex7kernels19max_pool2d_backward"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_RKNS0_13Pool2dOptionsE");
void wrap_max_pool(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options) {
  real_max_pool(ctx, dx, dy, indices, options);
  maybe_flip(ctx, "max_pool2d_backward.dx", dx);
}

using BatchNormBackward = void(const Context&, View, View, View, View, ConstView, ConstView, ConstView, ConstView,
                               ConstView, ConstView, ConstView, const BatchNormOptions&);
BatchNormBackward real_batch_norm asm(
    "__real__ZN4apex7kernels19batch_norm_backward"
    "ERKNS_7ContextENS_4ViewES4_S4_S4_NS_9ConstViewES5_S5_S5_S5_S5_S5_RKNS0_16BatchNormOptionsE");
BatchNormBackward wrap_batch_norm asm(
    "__wrap__ZN4apex7kernels19batch_norm_backward"
    "ERKNS_7ContextENS_4ViewES4_S4_S4_NS_9ConstViewES5_S5_S5_S5_S5_S5_RKNS0_16BatchNormOptionsE");
void wrap_batch_norm(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy, ConstView y,
                     ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                     const BatchNormOptions& options) {
  real_batch_norm(ctx, dx, dresidual, dweight, dbias, dy, y, x, weight, bias, mean, inv_std, options);
  maybe_flip(ctx, "batch_norm_backward.dx", dx);
  maybe_flip(ctx, "batch_norm_backward.dresidual", dresidual);
  maybe_flip(ctx, "batch_norm_backward.dweight", dweight);
  maybe_flip(ctx, "batch_norm_backward.dbias", dbias);
}

void real_conv_data(const Context&, View, ConstView, ConstView, const Conv2dOptions&) asm(
    "__real__ZN4apex7kernels20conv2d_backward_data"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_RKNS0_13Conv2dOptionsE");
void wrap_conv_data(const Context&, View, ConstView, ConstView, const Conv2dOptions&) asm(
    "__wrap__ZN4apex7kernels20conv2d_backward_data"
    "ERKNS_7ContextENS_4ViewENS_9ConstViewES5_RKNS0_13Conv2dOptionsE");
void wrap_conv_data(const Context& ctx, View dx, ConstView dy, ConstView w, const Conv2dOptions& options) {
  real_conv_data(ctx, dx, dy, w, options);
  maybe_flip(ctx, "conv2d_backward_data.dx", dx);
}

void real_conv_weight(const Context&, View, View, ConstView, ConstView, const Conv2dOptions&) asm(
    "__real__ZN4apex7kernels22conv2d_backward_weight"
    "ERKNS_7ContextENS_4ViewES4_NS_9ConstViewES5_RKNS0_13Conv2dOptionsE");
void wrap_conv_weight(const Context&, View, View, ConstView, ConstView, const Conv2dOptions&) asm(
    "__wrap__ZN4apex7kernels22conv2d_backward_weight"
    "ERKNS_7ContextENS_4ViewES4_NS_9ConstViewES5_RKNS0_13Conv2dOptionsE");
void wrap_conv_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x, const Conv2dOptions& options) {
  real_conv_weight(ctx, dw, db, dy, x, options);
  maybe_flip(ctx, "conv2d_backward_weight.dw", dw);
}

}  // namespace apex::kernels
