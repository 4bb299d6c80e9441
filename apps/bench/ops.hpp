// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "suite.hpp"

namespace bench {

/// The rows of `apex_bench ops`, by family; shapes and counting are those of the published comparison of Apex's
/// kernels (README). On the CPU every row runs in f32 and smaller.
void memory_rows(Suite& suite);
void activation_rows(Suite& suite);
void batch_norm_rows(Suite& suite);
void loss_rows(Suite& suite);
void matrix_rows(Suite& suite);
void convolution_rows(Suite& suite);

/// The rows of `apex_bench optim`.
void optimizer_rows(Suite& suite);

/// 16-bit types on CUDA, f32 on the CPU.
std::vector<apex::DType> work_dtypes(const Suite& suite);

}  // namespace bench
