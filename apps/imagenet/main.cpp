// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// imagenet_train: Apex's main_amp in C++. Options and assembly; the loop is apex::train::Trainer.
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include "apex/checkpoint.hpp"
#include "apex/core/standard_streams.hpp"
#include "apex/fp16_utils.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/layers.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/random.hpp"
#include "apex/train/classifier.hpp"
#include "apex/train/plan_cache.hpp"
#include "apex/train/runtime.hpp"
#include "apex/train/signals.hpp"
#include "apex/train/trainer.hpp"
#include "data.hpp"
#include "options.hpp"
#include "recipe.hpp"

namespace imagenet {
namespace {

constexpr const char* kProgram = "imagenet_train";

std::shared_ptr<apex::nn::Module> make_model(const Options& options, const Data& data) {
  apex::manual_seed(static_cast<std::uint64_t>(options.train.seed));
  auto model = apex::models::create(options.arch,
                                    {.num_classes = static_cast<std::int64_t>(data.sets.train->class_names().size()),
                                     .in_channels = data.channels,
                                     .zero_init_residual = options.zero_init_residual});
  if (options.freeze_bn) {
    model->apply([](apex::nn::Module& module) {
      if (auto* norm = dynamic_cast<apex::nn::BatchNorm*>(&module)) norm->set_frozen(true);
    });
  }
  return model;
}

apex::schedules::Schedule make_schedule(const Options& options, std::int64_t global_batch) {
  const double base = options.train.lr * static_cast<double>(global_batch) / 256.0;
  auto schedule = apex::schedules::create(options.lr_schedule, base);
  return options.warmup_epochs > 0 ? apex::schedules::warm_up_epochs(std::move(schedule), options.warmup_epochs)
                                   : schedule;
}

/// What shapes the training beside what the checkpoint holds itself (data, seed, schedule, hyper-parameters).
/// Without --optimizer: a checkpoint of another one is refused or, where state is shared, what differs is named.
const std::vector<std::string> kRecipe = {"dtype",           "loss-scale", "batch-size", "accumulate", "freeze-bn",
                                          "no-norm-decay",   "channels",   "image-size", "augment",    "decode",
                                          "label-smoothing", "bad-sample", "tf32"};

/// /config tells what was in force, which for the batch size may be what the checkpoint asks for.
void put_in_force(std::vector<apex::train::EffectiveOption>& configuration, std::int64_t batch_size) {
  for (auto& option : configuration)
    if (option.name == "batch-size" && option.value != std::to_string(batch_size))
      option = {option.name, std::to_string(batch_size), "kept from the checkpoint"};
}

int train(const Options& options, std::vector<apex::train::EffectiveOption> configuration,
          apex::dist::Session& session) {
  const auto& o = options.train;
  const apex::train::DirectoryGuard guard;
  session.world().agree(options.decode == "cpu" || session.device().is_cuda(),
                        "--decode gpu needs a GPU, and there is none here", apex::Kind::argument, "--decode");
  const bool talks = session.rank() == 0 && o.progress != "none";
  const int threads = apex::train::apply_threads(o, session);
  apex::train::apply_backend(o, session.device());
  apex::train::check_same_configuration(session.world(), configuration);
  if (talks)
    std::cout << "=> " << session.size() << " rank(s) on " << apex::to_string(session.device()) << ", " << threads
              << " thread(s) each\n"
              << apex::train::describe(configuration) << "\nopt_level = " << o.opt_level
              << "\nkeep_batchnorm_fp32 = None\nloss_scale = " << std::fixed << std::setprecision(1)
              << apex::train::loss_scale_of(o) << std::defaultfloat << std::setprecision(6) << std::endl;

  const auto resume = apex::train::find_resume(o, session);
  std::int64_t batch_size = 0;
  session.world().together([&] { batch_size = apex::train::batch_size_for(o, session.size(), resume); }, "batch size");
  if (talks && batch_size != o.batch_size)
    std::cout << "=> --batch-size is " << batch_size << " here, not " << o.batch_size << ", to keep the "
              << resume->global_batch << " samples a step of the checkpoint" << std::endl;
  put_in_force(configuration, batch_size);
  const Data data = open_data(options, session);
  if (talks && !data.sets.validation)
    std::cout << "=> no validation part: nothing will be validated (a folder val/ or --val-split gives one)"
              << std::endl;
  if (talks && options.decode == "gpu" && data.sets.train->fixed_size())
    std::cout << "=> --decode gpu: the samples of these data are pixels, so there is nothing to decode" << std::endl;
  if (talks && o.evaluate && !resume && options.pretrained.empty())
    std::cout << "=> evaluating random weights: neither --resume nor --pretrained gives a model" << std::endl;
  if (talks)
    std::cout << "=> " << (options.pretrained.empty() ? "creating model '" : "using pre-trained model '")
              << options.arch << "'" << std::endl;
  std::shared_ptr<apex::nn::Module> model;
  session.world().together([&] { model = make_model(options, data); }, "model");
  if (!options.pretrained.empty())
    session.world().together([&] { apex::checkpoint::load_model(options.pretrained, *model, {.arch = options.arch}); },
                             "--pretrained");
  const auto dtype = *apex::parse_dtype(o.dtype);
  const bool narrow = apex::is_16bit(dtype);
  const auto format = options.contiguous ? apex::MemoryFormat::contiguous : apex::MemoryFormat::channels_last;
  model->to(session.device(), narrow ? apex::DType::f32 : dtype, format);
  if (narrow) apex::fp16_utils::convert_network(*model, dtype);  // batch norm stays f32

  const std::int64_t global_batch = batch_size * session.size() * o.accumulate;
  Recipe recipe(*model, options, narrow);
  std::optional<apex::parallel::DistributedDataParallel> ddp;
  if (recipe.sharded() != nullptr)
    apex::parallel::broadcast_buffers(*model, session.world());
  else
    ddp.emplace(model, session.world(), apex::train::ddp_options(o));
  apex::train::Classifier task(model, [&](const apex::Tensor& x) { return ddp ? (*ddp)(x) : (*model)(x); },
                               {.mean = data.sets.normalization.mean,
                                .stddev = data.sets.normalization.stddev,
                                .label_smoothing = options.label_smoothing,
                                .loss_scale = apex::train::loss_scale_of(o),
                                .dtype = dtype,
                                .device = session.device(),
                                .format = format});
  std::unique_ptr<apex::io::Loader> train_set, validation_set;
  session.world().together(
      [&] {
        train_set = train_loader(data, options, batch_size, session);
        validation_set = validation_loader(data, options, batch_size, session);
      },
      "loaders");
  // A deterministic run takes nothing over that an earlier run has timed.
  const std::string plan_cache = o.deterministic ? "none" : o.plan_cache;
  if (talks && !session.device().is_cuda() && plan_cache != "none" && plan_cache != "auto")
    std::cout << "=> --plan-cache keeps plans of a GPU, and this run is on the CPU: '" << plan_cache
              << "' is neither read nor written" << std::endl;
  apex::train::PlanCache plans(apex::train::plan_cache_path(plan_cache, session.device(), o.checkpoint_dir));
  plans.set_writes(session.rank() == 0);
  plans.load(session.world().broadcast(session.rank() == 0 ? plans.read() : std::string(), 0, "execution plans"));
  apex::train::Trainer trainer({.session = session,
                                .options = o,
                                .configuration = configuration,
                                .recipe = kRecipe,
                                .arch = options.arch,
                                .model = model,
                                .optimizer = recipe.optimizer(),
                                .ddp = ddp ? &*ddp : nullptr,
                                .sharded = recipe.sharded(),
                                .schedule = make_schedule(options, global_batch),
                                .task = task,
                                .train = *train_set,
                                .validation = validation_set.get(),
                                .class_names = data.sets.train->class_names(),
                                .loss_scale = apex::train::loss_scale_of(o),
                                .plans = &plans,
                                .step = [&recipe](const auto& scaling) { recipe.step(scaling); }});
  if (resume) {
    trainer.resume(*resume);
    if (talks)
      std::cout << "=> resumed '" << resume->path.string() << "' (step " << resume->position.step << ", epoch "
                << resume->position.epoch << ")" << std::endl;
  }
  if (!o.evaluate) return trainer.run();
  return trainer.evaluate() ? apex::exit_code::kOk : static_cast<int>(o.requeue_exit_code);
}

int run(int argc, char** argv) {
  apex::fill_standard_streams();
  Options options;
  apex::train::OptionSet set(kProgram, "Trains an image classifier, on one process or many (mpirun, srun).");
  declare(set, options);
  std::string text;
  try {
    set.parse(argc, argv);
    text = set.text_wanted();
    if (text.empty() && options.list_archs)
      for (const auto& name : apex::models::list()) text += name + '\n';
    if (const auto code = apex::train::say_and_end(kProgram, text)) return *code;
    if (text.empty()) check(set, options);
  } catch (const apex::train::UsageError& error) {
    return apex::train::report_usage_error(kProgram, error.what());
  }
  const apex::train::StopSignals signals(apex::train::stop_signals_for(options.train.signal));
  apex::train::apply_determinism(options.train);
  return apex::dist::run_main([&] {
    auto wanted = text.empty() ? apex::train::session_options(options.train) : apex::dist::SessionOptions{};
    wanted.dismiss = !text.empty();
    apex::dist::Session session(argc, argv, wanted);
    if (const auto code = apex::train::say_and_end(kProgram, text, session)) return *code;
    session.world().agree(options.train.local_rank < 0 || options.train.local_rank == session.local_rank(),
                          apex::concat("--local_rank ", options.train.local_rank, " but MPI counts this process as ",
                                       session.local_rank(), " on its node; leave the option out"),
                          apex::Kind::argument, "--local_rank");
    return train(options, set.effective(), session);
  });
}

}  // namespace
}  // namespace imagenet

int main(int argc, char** argv) { return imagenet::run(argc, argv); }
