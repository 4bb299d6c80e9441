// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "apex/core/device.hpp"
#include "apex/core/dtype.hpp"
#include "compare.hpp"
#include "golden.hpp"

namespace apex::conformance {

/// How one op is replayed through the public API.
struct Op {
  std::string name;
  std::vector<DType> dtypes;  ///< those a case can be run in
  /// Reads everything it knows of the case, calls require_all_read() before it computes, and compares.
  void (*run)(const Case& recorded, Device device, DType dtype, Comparison& comparison);
};

/// Every op there is; an op has a file of its own and a line in ops.cpp.
const std::vector<Op>& ops();
const Op* find_op(const std::string& name);

void run_multi_tensor_axpby(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_multi_tensor_l2norm(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_multi_tensor_scale(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_resnet_training(const Case& recorded, Device device, DType dtype, Comparison& comparison);
/// The optimizers: dtype f32 replays a case in the types it was recorded in.
void run_adam(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_adagrad(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_sgd(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_lamb(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_novograd(const Case& recorded, Device device, DType dtype, Comparison& comparison);
void run_update_scale_hysteresis(const Case& recorded, Device device, DType dtype, Comparison& comparison);

}  // namespace apex::conformance
