// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <bit>
#include <optional>
#include <set>

#include "apex/collectives/deadline.hpp"
#include "apex/tensor_ops.hpp"
#include "names.hpp"

namespace apex::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Datasets below `group`, by path relative to it.
std::vector<std::string> datasets_below(const io::CheckpointFile& file, std::string_view group) {
  const std::string head = concat(group, '/');
  std::vector<std::string> names;
  const auto& all = file.datasets();
  for (auto it = all.lower_bound(head); it != all.end() && it->first.starts_with(head); ++it)
    names.push_back(it->first.substr(head.size()));
  return names;
}

std::string arch_of(const io::CheckpointFile& file) {
  return file.has_group("model")
             ? io::attribute<std::string>(file.attributes("model"), "arch", file.path().string() + ": /model")
             : std::string();
}

/// How the file's names and sizes differ from the models': the first of each sort, and how many.
class Difference {
 public:
  void missing(const std::string& name) { note(missing_, missing_count_, concat("'", name, "' is missing")); }
  void unexpected(const std::string& name) {
    note(unexpected_, unexpected_count_, concat("'", name, "' is unexpected"));
  }
  void sizes(const std::string& name, const Dims& in_file, const Dims& here) {
    note(sizes_, sizes_count_, concat("'", name, "' is ", in_file, ", the model's is ", here));
  }
  std::string text(bool names_count) const {
    std::string result;
    append(result, sizes_, sizes_count_);
    if (names_count) {
      append(result, missing_, missing_count_);
      append(result, unexpected_, unexpected_count_);
    }
    return result;
  }

 private:
  static void note(std::string& first, int& count, std::string text) {
    if (count++ == 0) first = std::move(text);
  }
  static void append(std::string& result, const std::string& first, int count) {
    if (count == 0) return;
    result += concat(result.empty() ? "" : "; ", first);
    if (count > 1) result += concat(" (and ", count - 1, " more)");
  }

  std::string missing_, unexpected_, sizes_;
  int missing_count_ = 0, unexpected_count_ = 0, sizes_count_ = 0;
};

void check_architecture(const io::CheckpointFile& file, const std::vector<LabelledModel>& models,
                        const std::string& arch, bool strict) {
  if (models.empty()) return;
  Difference difference;
  std::set<std::string> known;
  for (const auto& [label, model] : models) {
    for (const auto& entry : model->state_dict()) {
      const std::string name = full_name(label, entry.name);
      known.insert(name);
      const auto found = file.datasets().find("model/" + name);
      if (found == file.datasets().end())
        difference.missing(name);
      else if (found->second.strings || found->second.sizes != entry.tensor.sizes())
        difference.sizes(name, found->second.sizes, entry.tensor.sizes());
    }
  }
  for (const auto& name : datasets_below(file, "model"))
    if (!known.contains(name)) difference.unexpected(name);

  const std::string theirs = arch_of(file), text = difference.text(strict);
  const bool other_arch = strict && !arch.empty() && !theirs.empty() && theirs != arch;
  if (!other_arch && text.empty()) return;
  const auto quoted = [](const std::string& name) { return name.empty() ? std::string("an unnamed model") : name; };
  fail(Kind::data, concat(file.path().string(), ": checkpoint of ", quoted(theirs), " does not fit ", quoted(arch),
                          text.empty() ? "" : ": ", text, "; choose the model it was made with"));
}

/// A model's part of the file in the model's own names.
nn::StateDict read_model(const io::CheckpointFile& file, const std::string& label, const nn::Module& model) {
  nn::StateDict state;
  for (const auto& entry : model.state_dict()) {
    const std::string path = "model/" + full_name(label, entry.name);
    if (file.has_dataset(path)) state.push_back({entry.name, file.read(path), entry.kind});
  }
  return state;
}

/// One optimizer's part of the file, in the numbers of `optimizer`.
class OptimizerReader {
 public:
  OptimizerReader(const io::CheckpointFile& file, std::string path, const optimizers::Optimizer& optimizer,
                  const std::unordered_map<const void*, std::string>& model_names)
      : file_(file), path_(std::move(path)), optimizer_(optimizer), names_(names_in(optimizer, model_names)) {}

  optimizers::OptimizerState read() {
    if (!file_.has_group(path_)) refuse("the checkpoint has no such optimizer");
    check_format();
    state_.type = io::attribute<std::string>(file_.attributes(path_), "type", where());
    const auto& attributes = file_.attributes(path_);
    std::string wrapper;
    if (attributes.contains("wrapper")) wrapper = io::attribute<std::string>(attributes, "wrapper", where());
    if (state_.type != optimizer_.state_type() || wrapper != optimizer_.wrapper())
      refuse(concat("state of ", within(state_.type, wrapper), ", but this optimizer is ",
                    within(optimizer_.type(), optimizer_.wrapper()),
                    "; choose the one it was saved from, or take the model alone"));
    const auto groups = file_.children(path_ + "/groups").size();
    if (groups != names_.size()) refuse(concat(groups, " parameter groups, but this optimizer has ", names_.size()));
    std::int64_t next = 0;
    for (std::size_t g = 0; g < groups; ++g) read_group(g, next);
    state_.state.resize(static_cast<std::size_t>(next));
    read_tensors();
    return std::move(state_);
  }

 private:
  static std::string within(std::string_view type, const std::string& wrapper) {
    return wrapper.empty() ? std::string(type) : concat(type, " within ", wrapper);
  }
  std::string where() const { return concat(file_.path().string(), ": /", path_); }
  [[noreturn]] void refuse(std::string_view what) const { fail(Kind::data, concat(where(), ": ", what)); }

  /// Whole tensors by name are format 2 of Apex's distributed optimizers; their format 1 is made of each rank's own.
  void check_format() const {
    const auto& attributes = file_.attributes(path_);
    std::int64_t format = 2;
    if (attributes.contains("format"))
      format = io::attribute<std::int64_t>(attributes, "format", where());
    else
      for (const auto& child : file_.children(path_))
        if (child == "buckets" || child == "gathered_states") format = 1;
    if (format == 1)
      refuse("state of single ranks (format 1), which needs the same ranks and options; save it anew as format 2");
    if (format != 2) refuse(concat("state of format ", format, "; this version reads format 2"));
  }

  void read_group(std::size_t g, std::int64_t& next) {
    const std::string path = concat(path_, "/groups/", g);
    optimizers::OptimizerState::Group group;
    group.hyper = optimizer_.groups()[g].hyper;  // what the file does not say stays
    for (const auto& [key, value] : file_.attributes(path)) {
      if (const auto* flag = std::get_if<bool>(&value))
        group.hyper[key] = *flag;
      else if (const auto* integer = std::get_if<std::int64_t>(&value))
        group.hyper[key] = *integer;
      else if (const auto* number = std::get_if<double>(&value))
        group.hyper[key] = *number;
    }
    check_params(g, file_.read_strings(path + "/params"));
    for (std::size_t i = 0; i < names_[g].size(); ++i) {
      group.params.push_back(next);
      params_.push_back(optimizer_.groups()[g].params[i]);
      numbers_[names_[g][i]] = next++;
    }
    state_.groups.push_back(std::move(group));
  }

  void check_params(std::size_t g, const std::vector<std::string>& stored) const {
    if (stored.size() != names_[g].size())
      refuse(concat("group ", g, " has ", stored.size(), " parameters, but ", names_[g].size(), " in this optimizer"));
    const std::set<std::string> here(names_[g].begin(), names_[g].end());
    for (const auto& name : stored)
      if (!here.contains(name))
        refuse(concat("group ", g, " has parameter '", name, "', which this optimizer's has not"));
  }

  void read_tensors() {
    const std::string head = path_ + "/state";
    for (const auto& name : datasets_below(file_, head)) {
      const auto slash = name.rfind('/');
      const auto number = numbers_.find(name.substr(0, slash));
      if (slash == name.npos || number == numbers_.end())
        refuse(concat("state '", name, "' belongs to no parameter of this optimizer"));
      const auto at = static_cast<std::size_t>(number->second);
      const std::string key = name.substr(slash + 1);
      state_.state[at][key] = optimizer_.part_to_keep(params_[at], key, file_.read(concat(head, '/', name)));
    }
  }

  const io::CheckpointFile& file_;
  std::string path_;
  const optimizers::Optimizer& optimizer_;
  std::vector<std::vector<std::string>> names_;
  std::map<std::string, std::int64_t> numbers_;
  std::vector<Tensor> params_;  ///< by number
  optimizers::OptimizerState state_;
};

Section read_section(const io::CheckpointFile& file, const std::string& path) {
  Section section;
  if (!file.has_group(path)) return section;
  section.attributes = file.attributes(path);
  const std::string head = path + '/';
  for (auto it = file.groups().lower_bound(head); it != file.groups().end() && it->first.starts_with(head); ++it)
    section.groups[it->first.substr(head.size())] = it->second;
  for (const auto& name : datasets_below(file, path)) {
    if (file.datasets().find(head + name)->second.strings)
      section.strings[name] = file.read_strings(head + name);
    else
      section.tensors[name] = file.read(head + name);
  }
  return section;
}

std::vector<std::string> read_class_names(const io::CheckpointFile& file, const io::Attributes& root) {
  if (file.has_dataset("class_names")) return file.read_strings("class_names");
  if (!root.contains("class_names")) return {};
  return io::attribute<std::vector<std::string>>(root, "class_names", file.path().string());
}

std::vector<optimizers::Optimizer*> all_optimizers(const Targets& targets) {
  if (targets.optimizer && !targets.optimizers.empty())
    fail(Kind::argument, "checkpoint: give either optimizer or optimizers, not both");
  if (targets.optimizer) return {targets.optimizer};
  return targets.optimizers;
}

/// Everything a load needs, in host memory, before anything is changed.
struct Restored {
  Loaded loaded;
  std::vector<nn::StateDict> models;
  std::vector<optimizers::OptimizerState> optimizers;
  std::optional<Generator> rng;
};

Restored read_all(const fs::path& path, const Targets& targets, const std::vector<LabelledModel>& models,
                  const std::vector<optimizers::Optimizer*>& optimizers) {
  const io::CheckpointFile file(path);
  const std::string where = path.string();
  check_architecture(file, models, targets.arch, true);
  Restored r;
  for (const auto& [label, model] : models) r.models.push_back(read_model(file, label, *model));
  const auto names = parameter_names(models);
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    r.optimizers.push_back(OptimizerReader(file, concat("optimizer/", i), *optimizers[i], names).read());
  if (targets.rng) {
    const auto& rng = file.attributes("rng");
    r.rng = Generator{std::bit_cast<std::uint64_t>(io::attribute<std::int64_t>(rng, "seed", where)),
                      std::bit_cast<std::uint64_t>(io::attribute<std::int64_t>(rng, "offset", where))};
  }
  const auto& root = file.attributes("");
  auto& loaded = r.loaded;
  loaded.path = path;
  loaded.step = file.step();
  loaded.epoch = io::attribute<std::int64_t>(root, "epoch", where);
  loaded.world_size = io::attribute<std::int64_t>(root, "world_size", where);
  loaded.arch = arch_of(file);
  loaded.class_names = read_class_names(file, root);
  loaded.amp = read_section(file, "amp");
  loaded.scheduler = read_section(file, "scheduler");
  loaded.sampler = read_section(file, "sampler");
  loaded.ddp = read_section(file, "ddp");
  loaded.metrics = read_section(file, "metrics");
  loaded.config = read_section(file, "config");
  return r;
}

/// The optimizers refuse what does not fit before they change, so they come first; what the earlier ones took is given
/// back when a later one refuses.
void apply(const Restored& r, const Targets& targets, const std::vector<LabelledModel>& models,
           const std::vector<optimizers::Optimizer*>& optimizers) {
  std::vector<optimizers::OptimizerState> before;
  try {
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      if (optimizers.size() > 1) {
        before.push_back(optimizers[i]->state_dict());
        for (auto& state : before.back().state)
          for (auto& entry : state) entry.second = clone(entry.second);  // a load writes into the tensors there are
      }
      optimizers[i]->load_state_dict(r.optimizers[i]);
    }
  } catch (...) {
    for (std::size_t i = 0; i < before.size(); ++i) optimizers[i]->load_state_dict(before[i]);
    throw;
  }
  for (std::size_t i = 0; i < models.size(); ++i) models[i].second->load_state_dict(r.models[i]);
  for (auto* optimizer : optimizers) optimizer->parameters_loaded();
  if (r.rng) *targets.rng = *r.rng;
}

}  // namespace

Loaded load(const fs::path& path, const Targets& targets, const LoadOptions& options) {
  const auto group = (options.group ? options.group : dist::ProcessGroup::world()).channel(dist::Purpose::checkpoint);
  const dist::Deadline deadline(concat("reading the checkpoint ", path.string()), options.timeout_s);
  std::string found;
  group.together(
      [&] {
        if (group.rank() != 0) return;
        // A file is checked as it is read; of a directory we must know before we choose.
        const bool choose = fs::is_directory(path);
        found = io::open_checkpoint(path, choose ? io::Verify::full : io::Verify::none).path().string();
      },
      "choosing the checkpoint");
  found = group.broadcast(found, 0, "path of the checkpoint");

  Restored restored;
  std::vector<LabelledModel> models;
  std::vector<optimizers::Optimizer*> optimizers;
  group.together(
      [&] {
        models = all_models(targets.model, targets.models);
        optimizers = all_optimizers(targets);
        restored = read_all(found, targets, models, optimizers);
      },
      "reading the checkpoint");
  group.together([&] { apply(restored, targets, models, optimizers); }, "taking up the checkpoint");
  return std::move(restored.loaded);
}

nn::LoadReport load_model(const fs::path& path, nn::Module& model, const ModelLoadOptions& options) {
  const bool choose = fs::is_directory(path);
  const auto file = io::open_checkpoint(path, choose ? io::Verify::full : io::Verify::none);
  // A handle that owns nothing: the caller keeps the model.
  const std::vector<LabelledModel> models = {{"", std::shared_ptr<nn::Module>(std::shared_ptr<void>(), &model)}};
  check_architecture(file, models, options.arch, options.strict);
  nn::StateDict state = read_model(file, "", model);
  nn::LoadReport report = model.load_state_dict(state, {.strict = options.strict});
  std::set<std::string> known;
  for (const auto& entry : model.state_dict()) known.insert(full_name("", entry.name));
  for (const auto& name : datasets_below(file, "model"))
    if (!known.contains(name)) report.unexpected.push_back(name);
  return report;
}

}  // namespace apex::checkpoint
