// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <bit>
#include <set>
#include <utility>

#include "apex/autograd.hpp"
#include "apex/collectives/deadline.hpp"
#include "apex/kernels/copy.hpp"
#include "names.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::checkpoint {
namespace {

// More names than this are stored as a dataset: an attribute holds less than 64 KiB.
constexpr std::size_t kMaxNamesInAttribute = 2000;

/// Brings tensors to the host. What lies on a device is copied into page-locked memory, so that hundreds of copies are
/// queued and waited for once.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// The copies' memory must not go away under them, whatever was thrown.
  ~Staging() {
    try {
      wait();
    } catch (const Error&) {  // a broken device says so at the next call
    }
  }

  /// A host tensor that has the values of `t` after wait(): `t` itself on the host.
  Tensor on_host(const Tensor& t) {
    if (t.device().is_cpu()) return t.detach();
#ifdef APEX_HAS_CUDA
    const Dims strides = is_non_overlapping_and_dense(t.sizes(), t.strides()) ? t.strides() : strides_for(t.sizes());
    Tensor host = Tensor::from_storage(cuda::pinned_pool::storage(t.bytes()), t.dtype(), t.sizes(), strides);
    devices_.insert(t.device().index);
    kernels::transfer(t.context(), host.view(), t.view());
    return host;
#else
    throw_not_built("checkpoint", t.device());
#endif
  }

  void wait() {
#ifdef APEX_HAS_CUDA
    for (const int index : std::exchange(devices_, {})) cuda::synchronize(Context::current({DeviceKind::cuda, index}));
#endif
  }

 private:
  std::set<int> devices_;
};

void add_models(io::Tree& tree, Staging& staging, const std::vector<LabelledModel>& models) {
  for (const auto& [label, model] : models) {
    for (const auto& entry : model->state_dict()) {
      const bool parameter = entry.kind == nn::StateKind::parameter;
      tree.add("model/" + full_name(label, entry.name), staging.on_host(entry.tensor),
               {{"kind", std::string(parameter ? "parameter" : "buffer")},
                {"requires_grad", parameter && requires_grad(entry.tensor)}});
    }
  }
}

using Parts = std::vector<optimizers::Optimizer::StatePart>;

void add_optimizer(io::Tree& tree, Staging& staging, const std::string& path, const optimizers::Optimizer& optimizer,
                   const Parts& parts, const std::unordered_map<const void*, std::string>& model_names) {
  tree.group(path)["type"] = std::string(optimizer.state_type());
  if (!optimizer.wrapper().empty()) tree.group(path)["wrapper"] = optimizer.wrapper();
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
  for (const auto& part : parts) {
    const std::string name = concat(path, "/state/", by_id.at(part.param.id()), '/', part.key);
    if (part.whole)
      tree.add(name, part.values);
    else
      tree.add_part(name, part.sizes, part.begin, part.values);
  }
  if (optimizer.in_parts()) return;
  optimizer.for_each_state([&](const Tensor& param, const std::string& key, const Tensor& value) {
    tree.add(concat(path, "/state/", by_id.at(param.id()), '/', key), staging.on_host(value));
  });
}

void add_section(io::Tree& tree, Staging& staging, const std::string& path, const Section& section) {
  tree.group(path) = section.attributes;
  for (const auto& [name, attributes] : section.groups) tree.group(concat(path, '/', name)) = attributes;
  for (const auto& [name, tensor] : section.tensors) tree.add(concat(path, '/', name), staging.on_host(tensor));
  for (const auto& [name, strings] : section.strings) tree.add(concat(path, '/', name), strings);
}

std::vector<const optimizers::Optimizer*> all_optimizers(const Contents& contents) {
  if (contents.optimizer && !contents.optimizers.empty())
    fail(Kind::argument, "checkpoint: give either optimizer or optimizers, not both");
  if (contents.optimizer) return {contents.optimizer};
  for (std::size_t i = 0; i < contents.optimizers.size(); ++i)
    if (!contents.optimizers[i]) fail(Kind::argument, concat("checkpoint: optimizer ", i, " is null"));
  return contents.optimizers;
}

io::Tree tree_of(const Contents& contents, const std::vector<const optimizers::Optimizer*>& optimizers,
                 const std::vector<Parts>& parts) {
  io::Tree tree;
  Staging staging;  // after the tree: it waits before the tree lets go of memory
  auto& root = tree.group("");
  root["epoch"] = contents.epoch;
  if (contents.class_names.size() <= kMaxNamesInAttribute)
    root["class_names"] = contents.class_names;
  else
    tree.add("class_names", contents.class_names);

  const auto models = all_models(contents.model, contents.models);
  tree.group("model")["arch"] = contents.arch;
  add_models(tree, staging, models);

  const auto names = parameter_names(models);
  tree.group("optimizer");
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    add_optimizer(tree, staging, concat("optimizer/", i), *optimizers[i], parts[i], names);

  const Generator& rng = contents.rng ? *contents.rng : default_generator();
  tree.group("rng") = {{"seed", std::bit_cast<std::int64_t>(rng.seed)},
                       {"offset", std::bit_cast<std::int64_t>(rng.offset)}};
  add_section(tree, staging, "amp", contents.amp);
  add_section(tree, staging, "scheduler", contents.scheduler);
  add_section(tree, staging, "sampler", contents.sampler);
  add_section(tree, staging, "ddp", contents.ddp);
  add_section(tree, staging, "metrics", contents.metrics);
  add_section(tree, staging, "config", contents.config);
  staging.wait();
  return tree;
}

}  // namespace

io::CheckpointWriteResult save(const std::filesystem::path& directory, const Contents& contents,
                               const SaveOptions& options) {
  const auto group = (options.group ? options.group : dist::ProcessGroup::world()).channel(dist::Purpose::checkpoint);
  const dist::Deadline deadline(concat("writing the checkpoint of step ", contents.step, " to ", directory.string()),
                                options.timeout_s);
  io::Tree tree;
  std::vector<const optimizers::Optimizer*> optimizers;
  group.together([&] { optimizers = all_optimizers(contents); }, "optimizers of the checkpoint");
  std::vector<Parts> parts(optimizers.size());
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    optimizers[i]->synchronize();
    if (optimizers[i]->in_parts()) optimizers[i]->for_each_part([&](const auto& part) { parts[i].push_back(part); });
  }
  group.together([&] { tree = tree_of(contents, optimizers, parts); }, "collecting the checkpoint");
  return io::write_checkpoint(
      group.mpi_comm(), directory, contents.step, tree,
      {.verify = options.verify, .keep = options.keep, .best = options.best, .loaded_from = options.loaded_from});
}

}  // namespace apex::checkpoint
