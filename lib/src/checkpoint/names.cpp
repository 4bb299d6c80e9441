// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "names.hpp"

#include <set>

namespace apex::checkpoint {

std::vector<LabelledModel> all_models(const std::shared_ptr<nn::Module>& model,
                                      const std::vector<LabelledModel>& models) {
  if (model && !models.empty()) fail(Kind::argument, "checkpoint: give either model or models, not both");
  if (model) return {{"", model}};
  std::set<std::string> labels;
  for (const auto& [label, m] : models) {
    if (!m) fail(Kind::argument, concat("checkpoint: the model '", label, "' is null"));
    if (label.empty() || label.find_first_of("./") != label.npos)
      fail(Kind::argument, concat("checkpoint: '", label, "' cannot label a model: it is empty or holds '.' or '/'"));
    if (!labels.insert(label).second) fail(Kind::argument, concat("checkpoint: two models are called '", label, "'"));
  }
  return models;
}

std::string full_name(const std::string& label, std::string name) {
  constexpr std::string_view kWrapper = "module.";
  if (name.starts_with(kWrapper)) name.erase(0, kWrapper.size());
  return label.empty() ? name : label + '.' + name;
}

std::unordered_map<const void*, std::string> parameter_names(const std::vector<LabelledModel>& models) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& [label, model] : models)
    for (const auto& [name, tensor] : model->named_parameters()) names.emplace(tensor.id(), full_name(label, name));
  return names;
}

std::vector<std::vector<std::string>> names_in(const optimizers::Optimizer& optimizer,
                                               const std::unordered_map<const void*, std::string>& names) {
  std::vector<std::vector<std::string>> result;
  for (const auto& group : optimizer.groups()) {
    auto& list = result.emplace_back();
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const auto found = names.find(group.params[i].id());
      list.push_back(found != names.end() ? found->second
                                          : "param_" + std::to_string(result.size() - 1) + '_' + std::to_string(i));
    }
  }
  return result;
}

}  // namespace apex::checkpoint
