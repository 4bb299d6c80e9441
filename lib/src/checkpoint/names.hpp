// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "apex/checkpoint.hpp"

namespace apex::checkpoint {

/// `model` and `models` as one list; the single one has an empty label.
/// @throws Kind::argument when both are given, a model is null, or a label is bad or used twice
std::vector<LabelledModel> all_models(const std::shared_ptr<nn::Module>& model,
                                      const std::vector<LabelledModel>& models);

/// "label.path" without a leading "module.".
std::string full_name(const std::string& label, std::string name);

/// Names of the models' parameters by the tensors' identity.
std::unordered_map<const void*, std::string> parameter_names(const std::vector<LabelledModel>& models);

/// Names of an optimizer's parameters, group by group: the models' names, param_<g>_<i> for those of no model.
std::vector<std::vector<std::string>> names_in(const optimizers::Optimizer& optimizer,
                                               const std::unordered_map<const void*, std::string>& names);

}  // namespace apex::checkpoint
