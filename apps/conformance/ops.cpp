// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "ops.hpp"

namespace apex::conformance {

const std::vector<Op>& ops() {
  static const std::vector<Op> all = {
      {"adagrad", {DType::f32, DType::f64}, run_adagrad},
      {"adam", {DType::f32, DType::f64}, run_adam},
      {"lamb", {DType::f32, DType::f64}, run_lamb},
      {"multi_tensor_axpby", {DType::f32}, run_multi_tensor_axpby},
      {"multi_tensor_l2norm", {DType::f32}, run_multi_tensor_l2norm},
      {"multi_tensor_scale", {DType::f32}, run_multi_tensor_scale},
      {"novograd", {DType::f32, DType::f64}, run_novograd},
      {"resnet_training", {DType::f64, DType::f32}, run_resnet_training},
      {"sgd", {DType::f32, DType::f64}, run_sgd},
      {"update_scale_hysteresis", {DType::f32}, run_update_scale_hysteresis},
  };
  return all;
}

const Op* find_op(const std::string& name) {
  for (const Op& op : ops())
    if (op.name == name) return &op;
  return nullptr;
}

}  // namespace apex::conformance
