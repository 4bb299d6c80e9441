// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

enum class Reduction { none, mean, sum };

struct CrossEntropyOptions {
  double label_smoothing = 0.0;      ///< epsilon, in [0, 1]
  std::int64_t ignore_index = -100;  ///< rows with this label give loss 0 and gradient 0 and do not count
  Reduction reduction = Reduction::mean;
};

/// Softmax cross entropy with label smoothing (Szegedy et al. 2016, arXiv:1512.00567).
///
///   loss[i] = (1 - epsilon) (lse[i] - x[i, label[i]]) + epsilon (lse[i] - mean over c of x[i, c])
///   lse[i]  = log(sum over c of exp(x[i, c]))
///
/// mean divides by the number of rows that count (none: NaN). With epsilon = 0, logits of -infinity are legal.
/// @param loss    one element (rank 0 or [1]) for mean and sum, [N] for none; A = f64 for f64 logits, else f32
/// @param lse     [N] in A: all that backward needs beside the logits; may be undefined
/// @param logits  [N, C], any strides; f64, f32, f16, bf16
/// @param labels  [N] i64
/// A label that is neither in [0, C) nor ignore_index: on the CPU Kind::argument naming row and value; on CUDA, where
/// throwing would mean waiting for the device, the row's loss (and with it mean and sum) and its gradient are NaN; with
/// data checks on (kernels/data_checks.hpp) forward waits and throws there too.
/// @throws Kind::argument for shapes, dtypes and options that do not fit
void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options = {});

/// dlogits[i, c] = g[i] (softmax(x)[i, c] - (1 - epsilon) [c == label] - epsilon / C), 0 for ignored rows;
/// g = dloss, divided by the number of rows that count for mean.
/// @param dlogits  logits' sizes and dtype; may be logits itself
/// @param dloss    loss' sizes and dtype
/// @param lse      from forward
void cross_entropy_backward(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options = {});

}  // namespace apex::kernels
