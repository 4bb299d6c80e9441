// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "ops.hpp"

namespace apex::conformance {

const std::vector<Op>& ops() {
  static const std::vector<Op> all = {
      {"resnet_training", {DType::f64, DType::f32}, run_resnet_training},
  };
  return all;
}

const Op* find_op(const std::string& name) {
  for (const Op& op : ops())
    if (op.name == name) return &op;
  return nullptr;
}

}  // namespace apex::conformance
