// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <bit>

#include "apex/autograd.hpp"
#include "apex/collectives/deadline.hpp"
#include "apex/nn/functional.hpp"
#include "names.hpp"

namespace apex::checkpoint {
namespace {

// More names than this are stored as a dataset: an attribute holds less than 64 KiB.
constexpr std::size_t kMaxNamesInAttribute = 2000;

Tensor on_host(const Tensor& t) {
  if (t.device().is_cpu()) return t.detach();
  const NoGradGuard no_grad;
  return nn::functional::to(t.detach(), kCpu);
}

void add_models(io::Tree& tree, const std::vector<LabelledModel>& models) {
  for (const auto& [label, model] : models) {
    for (const auto& entry : model->state_dict()) {
      const bool parameter = entry.kind == nn::StateKind::parameter;
      tree.add("model/" + full_name(label, entry.name), on_host(entry.tensor),
               {{"kind", std::string(parameter ? "parameter" : "buffer")},
                {"requires_grad", parameter && requires_grad(entry.tensor)}});
    }
  }
}

void add_optimizer(io::Tree& tree, const std::string& path, const optimizers::Optimizer& optimizer,
                   const std::unordered_map<const void*, std::string>& model_names) {
  tree.group(path)["type"] = std::string(optimizer.type());
  const auto names = names_in(optimizer, model_names);
  std::unordered_map<const void*, std::string> by_id;
  for (std::size_t g = 0; g < names.size(); ++g) {
    const auto& group = optimizer.groups()[g];
    const std::string group_path = concat(path, "/groups/", g);
    auto& attributes = tree.group(group_path);
    for (const auto& [key, value] : group.hyper) std::visit([&, &name = key](auto v) { attributes[name] = v; }, value);
    tree.add(group_path + "/params", names[g]);
    for (std::size_t i = 0; i < names[g].size(); ++i) by_id.emplace(group.params[i].id(), names[g][i]);
  }
  tree.group(path + "/state");
  optimizer.for_each_state([&](const Tensor& param, const std::string& key, const Tensor& value) {
    tree.add(concat(path, "/state/", by_id.at(param.id()), '/', key), on_host(value));
  });
}

void add_section(io::Tree& tree, const std::string& path, const Section& section) {
  tree.group(path) = section.attributes;
  for (const auto& [name, attributes] : section.groups) tree.group(concat(path, '/', name)) = attributes;
  for (const auto& [name, tensor] : section.tensors) tree.add(concat(path, '/', name), on_host(tensor));
  for (const auto& [name, strings] : section.strings) tree.add(concat(path, '/', name), strings);
}

io::Tree tree_of(const Contents& contents) {
  io::Tree tree;
  auto& root = tree.group("");
  root["epoch"] = contents.epoch;
  if (contents.class_names.size() <= kMaxNamesInAttribute)
    root["class_names"] = contents.class_names;
  else
    tree.add("class_names", contents.class_names);

  const auto models = all_models(contents.model, contents.models);
  tree.group("model")["arch"] = contents.arch;
  add_models(tree, models);

  if (contents.optimizer && !contents.optimizers.empty())
    fail(Kind::argument, "checkpoint: give either optimizer or optimizers, not both");
  const auto names = parameter_names(models);
  tree.group("optimizer");
  if (contents.optimizer) add_optimizer(tree, "optimizer/0", *contents.optimizer, names);
  for (std::size_t i = 0; i < contents.optimizers.size(); ++i) {
    if (!contents.optimizers[i]) fail(Kind::argument, concat("checkpoint: optimizer ", i, " is null"));
    add_optimizer(tree, concat("optimizer/", i), *contents.optimizers[i], names);
  }

  const Generator& rng = contents.rng ? *contents.rng : default_generator();
  tree.group("rng") = {{"seed", std::bit_cast<std::int64_t>(rng.seed)},
                       {"offset", std::bit_cast<std::int64_t>(rng.offset)}};
  add_section(tree, "amp", contents.amp);
  add_section(tree, "scheduler", contents.scheduler);
  add_section(tree, "sampler", contents.sampler);
  add_section(tree, "ddp", contents.ddp);
  add_section(tree, "metrics", contents.metrics);
  add_section(tree, "config", contents.config);
  return tree;
}

}  // namespace

io::CheckpointWriteResult save(const std::filesystem::path& directory, const Contents& contents,
                               const SaveOptions& options) {
  const auto group = (options.group ? options.group : dist::ProcessGroup::world()).channel(dist::Purpose::checkpoint);
  const dist::Deadline deadline(concat("writing the checkpoint of step ", contents.step, " to ", directory.string()),
                                options.timeout_s);
  io::Tree tree;
  group.together([&] { tree = tree_of(contents); }, "collecting the checkpoint");
  return io::write_checkpoint(
      group.mpi_comm(), directory, contents.step, tree,
      {.verify = options.verify, .keep = options.keep, .best = options.best, .loaded_from = options.loaded_from});
}

}  // namespace apex::checkpoint
