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
void elementwise_rows(Suite& suite);
void reduction_rows(Suite& suite);
void shape_rows(Suite& suite);
void index_rows(Suite& suite);

/// A row whose result is one tensor. `make` gives the inputs and, last, the result where `run` writes into it; run
/// returns the result. `want` is element i of it in row-major order; a few places are compared.
struct SimpleRow {
  std::string title, peer;
  std::vector<apex::Op> ops;
  double bytes = 0;
  std::function<std::vector<apex::Tensor>()> make;
  std::function<apex::Tensor(const std::vector<apex::Tensor>&)> run;
  std::function<double(const std::vector<apex::Tensor>&, std::int64_t i)> want;
  double relative = 0, absolute = 0;
};
void simple_row(Suite& suite, const SimpleRow& row);
/// Element i of a dense row-major tensor.
double element(const apex::Tensor& t, std::int64_t i);

/// The rows of `apex_bench optim`.
void optimizer_rows(Suite& suite);

/// 16-bit types on CUDA, f32 on the CPU.
std::vector<apex::DType> work_dtypes(const Suite& suite);

}  // namespace bench
