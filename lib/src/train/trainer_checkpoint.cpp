// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What a run writes into a checkpoint beside model and optimizer, and how it takes it up again.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <set>
#include <variant>

#include "apex/autograd.hpp"
#include "apex/checkpoint.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/nn/functional.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/trainer.hpp"

namespace apex::train {
namespace {

checkpoint::Section scheduler_section(const schedules::Schedule& schedule) {
  checkpoint::Section out;
  out.attributes["name"] = schedule.name();
  for (const auto& [key, value] : schedule.parameters()) out.attributes[key] = value;
  return out;
}

io::Verify verify_of(const std::string& word) {
  return word == "full" ? io::Verify::full : word == "none" ? io::Verify::none : io::Verify::sample;
}

bool is_finite(const Tensor& host) {
  return visit_floating(host.dtype(), "finite check", [&]<class T>() {
    const T* values = host.data<T>();  // parameters and buffers are dense, in whatever order
    return std::all_of(values, values + host.numel(), [](T v) { return std::isfinite(static_cast<double>(v)); });
  });
}

/// Whether some of these device tensors may hold a NaN or an infinity: their squares cannot be summed.
bool suspicious(const std::vector<Tensor>& tensors) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    std::vector<ConstView> views;
    for (const auto& t : tensors)
      if (t.dtype() == dtype) views.push_back(t.view());
    if (views.empty()) continue;
    const Device device = tensors.front().device();
    const Tensor flag = zeros({1}, DType::i32, device);
    const Tensor norm = empty({1}, dtype == DType::f64 ? DType::f64 : DType::f32, device);
    kernels::multi_tensor_l2norm(flag.context(), flag.view(), norm.view(), View(), views);
    if (flag.item() != 0) return true;
  }
  return false;
}

/// Name of the first parameter or floating buffer with a NaN or an infinity; empty when there is none.
std::string first_non_finite(const nn::Module& model) {
  const NoGradGuard no_grad;
  std::vector<nn::NamedTensor> entries;
  std::vector<Tensor> on_device;
  for (const auto& list : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& entry : list) {
      if (!is_floating(entry.tensor.dtype())) continue;
      entries.push_back(entry);
      if (entry.tensor.device().is_cuda()) on_device.push_back(entry.tensor);
    }
  }
  if (on_device.size() == entries.size() && !entries.empty() && !suspicious(on_device)) return {};
  for (const auto& entry : entries)
    if (!is_finite(nn::functional::to(entry.tensor.detach(), kCpu))) return entry.name;
  return {};
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

void Trainer::save(bool best, Need need) {
  static_cast<void>(settle());  // the last step is reported before; a wish to stop is still there at the next push
  const auto start = std::chrono::steady_clock::now();
  const auto& o = parts_.options;
  parts_.optimizer.synchronize();
  broadcast_buffers();  // one model goes into the file, and it is the one that was validated
  const std::string bad = first_non_finite(*parts_.model);
  parts_.session.world().agree(
      bad.empty(),
      concat("'", bad, "' is not finite after step ", position_.step, "; no checkpoint is written, the last one stays"),
      Kind::numerical, "finite parameters");
  checkpoint::Contents contents;
  contents.model = parts_.model;
  contents.optimizer = &parts_.optimizer;
  contents.amp.attributes["opt_level"] = o.opt_level;
  contents.scheduler = scheduler_section(parts_.schedule);
  const auto& sampler = parts_.train.sampler();
  contents.sampler.attributes = {
      {"seed", static_cast<std::int64_t>(sampler.options().seed)},
      {"epoch", position_.epoch},
      {"index", position_.index},
      {"global_batch", sampler.global_batch() * o.accumulate},
      {"samples", sampler.options().size},
      {"fingerprint", std::to_string(io::fingerprint(parts_.train.dataset()))},
  };
  contents.ddp = ddp_section();
  contents.metrics.attributes = {{"best_prec1", best_}, {"saved_at", now_utc()}};
  for (const auto& option : parts_.configuration)
    contents.config.attributes[option.name] = option.value + "  (" + option.origin + ")";
  contents.arch = parts_.arch;
  contents.class_names = parts_.class_names;
  contents.step = position_.step;
  contents.epoch = position_.epoch;
  io::CheckpointWriteResult result;
  try {
    result = checkpoint::save(o.checkpoint_dir, contents,
                              {.verify = verify_of(o.verify_checkpoint),
                               .keep = static_cast<int>(o.keep),
                               .best = best,
                               .loaded_from = loaded_from_,
                               .group = parts_.session.world()});
  } catch (const Error& e) {
    // These are thrown on all ranks together; after any other the ranks may not agree on where they are.
    const bool agreed = e.kind() == Kind::exhausted || e.kind() == Kind::data || e.kind() == Kind::damaged;
    if (o.checkpoint_failure != "warn" || need == Need::this_one || !agreed) throw;
    if (parts_.session.rank() == 0)
      log_warning(concat("no checkpoint of step ", position_.step, ": ", e.what(), "; training goes on"));
    checkpoint_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return;
  }
  saved_position_ = position_;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  checkpoint_seconds_ += seconds;
  reporter_->checkpoint(position_.step, result.path, result.bytes, seconds);
}

/// What the options of this run say of each parameter group holds, not what the file says; differences are named. The
/// learning rate follows the schedule.
void Trainer::keep_hyper(const std::vector<optimizers::HyperMap>& wanted, const std::string& where) {
  std::set<std::string> named;
  for (std::size_t g = 0; g < wanted.size(); ++g)
    for (const auto& [key, value] : wanted[g]) {
      const auto loaded = parts_.optimizer.groups()[g].hyper.at(key);
      if (key == "lr" || loaded == value) continue;
      parts_.optimizer.set_hyper(g, key, value);
      const auto words = [](const optimizers::HyperValue& v) {
        return std::visit([](const auto& x) { return concat(x); }, v);
      };
      if (parts_.session.rank() == 0 && named.insert(key).second)
        log_warning(concat(key, " is ", words(value), " here, not ", words(loaded), " as in '", where,
                           "': this run follows its own options"));
    }
}

void Trainer::resume(const Resume& from) {
  const auto& o = parts_.options;
  std::vector<optimizers::HyperMap> hyper;
  for (const auto& group : parts_.optimizer.groups()) hyper.push_back(group.hyper);
  const std::string where = from.path.string();
  const auto changed =
      o.evaluate ? std::vector<std::string>() : changed_options(parts_.configuration, parts_.recipe, from.config);
  if (parts_.session.rank() == 0)
    for (const auto& change : changed)
      log_warning(concat(change, " as in '", where, "': the run goes on with its own"));
  const auto loaded = checkpoint::load(from.path,
                                       {.model = parts_.model,
                                        .optimizer = o.evaluate ? nullptr : &parts_.optimizer,
                                        .rng = o.evaluate ? nullptr : &default_generator(),
                                        .arch = parts_.arch},
                                       {.group = parts_.session.world()});
  best_ = io::attribute<double>(loaded.metrics.attributes, "best_prec1", where + ": /metrics");
  position_ = from.position;
  if (o.evaluate) return;
  keep_hyper(hyper, where);

  const auto& sampler = parts_.train.sampler();
  const auto samples = io::attribute<std::int64_t>(loaded.sampler.attributes, "samples", where + ": /sampler");
  const auto& print = io::attribute<std::string>(loaded.sampler.attributes, "fingerprint", where + ": /sampler");
  const auto world = parts_.session.world();
  world.agree(samples == sampler.options().size && print == std::to_string(io::fingerprint(parts_.train.dataset())),
              concat("'", where, "' was trained on other data (", samples, " samples, here ", sampler.options().size,
                     "); resume with the data set it was started with, or start anew with --pretrained"),
              Kind::data, "data of the checkpoint");
  const auto seed = io::attribute<std::int64_t>(loaded.sampler.attributes, "seed", where + ": /sampler");
  world.agree(seed == static_cast<std::int64_t>(sampler.options().seed),
              concat("'", where, "' was trained with --seed ", seed, ", not ", sampler.options().seed), Kind::data,
              "seed of the checkpoint");
  if (loaded.scheduler.attributes != scheduler_section(parts_.schedule).attributes && parts_.session.rank() == 0)
    log_warning(concat("the learning rate schedule is not the one of '", where, "': this run follows its own options"));
  if (loaded.world_size == parts_.session.size()) restore_ddp(loaded.ddp);
  loaded_from_ = from.path;
  saved_position_ = position_;
}

checkpoint::Section plan_section(const parallel::BucketPlan& plan) {
  const auto code = plan.encode();
  const Tensor values = empty({static_cast<std::int64_t>(code.size())}, DType::i32, kCpu);
  std::copy(code.begin(), code.end(), values.data<std::int32_t>());
  checkpoint::Section out;
  out.tensors["bucket_plan"] = values;  // an attribute could hold no more than 64 KiB
  return out;
}

parallel::BucketPlan plan_of(const checkpoint::Section& section) {
  const auto stored = section.tensors.find("bucket_plan");
  if (stored == section.tensors.end()) {  // files of the first days hold an attribute
    const auto& code = io::attribute<std::vector<std::int64_t>>(section.attributes, "bucket_plan", "/ddp");
    return parallel::BucketPlan::decode(std::vector<std::int32_t>(code.begin(), code.end()));
  }
  const Tensor& values = stored->second;
  if (values.dtype() != DType::i32) fail(Kind::damaged, "/ddp/bucket_plan does not hold 32-bit integers");
  const auto* code = values.data<std::int32_t>();
  return parallel::BucketPlan::decode({code, static_cast<std::size_t>(values.numel())});
}

checkpoint::Section Trainer::ddp_section() const {
  return plan_section(parts_.ddp ? parts_.ddp->bucket_plan() : parallel::BucketPlan{});
}

void Trainer::restore_ddp(const checkpoint::Section& section) {
  if (parts_.ddp == nullptr) return;
  const auto plan = plan_of(section);
  if (!plan.empty() && !parts_.ddp->restore_bucket_plan(plan) && parts_.session.rank() == 0)
    log_warning("the bucket plan of the checkpoint does not fit this model's gradients: sums may differ in order");
}

void Trainer::note_start() {
  const auto world = parts_.session.world();
  std::int64_t starts = 0;
  if (parts_.session.rank() == 0) starts = io::record_attempt(parts_.options.checkpoint_dir, position_.step).count;
  starts = world.all_reduce(starts, dist::ReduceOp::max, "starts from this step");
  if (starts >= io::kMaxAttempts)
    world.agree(false,
                concat("start ", starts, " in a row from step ", position_.step, " of '", parts_.options.checkpoint_dir,
                       "' without a newer checkpoint: something stops the run each time; look into its logs, and "
                       "delete the file ATTEMPTS there to try again"),
                Kind::numerical, "starts from this step");
}

}  // namespace apex::train
