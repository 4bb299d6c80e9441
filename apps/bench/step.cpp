// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "step.hpp"

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apex/autograd.hpp"
#include "apex/collectives/session.hpp"
#include "apex/contrib/optimizers/distributed_fused_adam.hpp"
#include "apex/fp16_utils.hpp"
#include "apex/kernels/backend.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/random.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/runtime.hpp"
#include "apex/train/step_graph.hpp"
#include "measure.hpp"
#include "optim.hpp"
#include "peer.hpp"
#include "probe.hpp"
#include "torch_scripts.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace bench {
namespace {

using apex::Tensor;
using Clock = std::chrono::steady_clock;
namespace functional = apex::nn::functional;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Our side: model, optimizer, one fixed batch.
class Step {
 public:
  Step(const StepCase& c, apex::dist::Session* session, bool cuda_graph)
      : case_(c), model_(make_model(c)), optimizer_(make_optimizer(c, *model_)) {
    const auto format = c.channels_last ? apex::MemoryFormat::channels_last : apex::MemoryFormat::contiguous;
    x_ = uniform({c.batch, c.channels, c.image, c.image}, c.dtype, c.device,
                 1 + static_cast<std::uint64_t>(session == nullptr ? 0 : session->rank()), -1.7, 1.7, format);
    labels_ = labels(c.batch, c.classes, c.device);
    loss_ = apex::zeros({1}, apex::accum_dtype(c.dtype), c.device);
    if (c.loss_scale != 1) inv_scale_ = apex::full({1}, 1 / c.loss_scale, apex::DType::f32, c.device);
    if (session != nullptr && session->size() > 1 && c.optimizer != "zero-adam")
      ddp_ = std::make_unique<apex::parallel::DistributedDataParallel>(
          model_, session->world(), apex::parallel::DistributedDataParallelOptions{.bucket_cap_mb = 25});
    if (cuda_graph) {
      apex::train::StepGraphOptions options;
      options.written = [this] { return written(); };
      options.recover = [this] { optimizer_->zero_grad(true); };
      if (session != nullptr)
        options.launched = [device = c.device](std::int64_t launch) {
          apex::dist::watch(apex::Context::current(device), apex::concat("graph step ", launch));
        };
      graph_ = std::make_unique<apex::train::StepGraph>(c.device, std::move(options));
    }
  }

  void once() {
    if (graph_)
      graph_->run("step", [this] { body(); });
    else
      body();
  }

  /// Milliseconds of a step. On the CPU the median of steps that each read their loss; on CUDA the mean of steps queued
  /// one after the other.
  double time(int steps) {
    if (case_.device.is_cuda()) {
      synchronize(case_.device);
      const auto start = Clock::now();
      for (int i = 0; i < steps; ++i) once();
      synchronize(case_.device);
      return 1e3 * seconds_since(start) / steps;
    }
    std::vector<double> ms;
    for (int i = 0; i < steps; ++i) {
      const auto start = Clock::now();
      once();
      loss_.item();
      ms.push_back(1e3 * seconds_since(start));
    }
    return median(std::move(ms));
  }

  double last_loss() const { return loss_.item(); }
  double optimizer_bytes() const { return state_bytes(*optimizer_); }
  const apex::train::StepGraph* graph() const { return graph_.get(); }

 private:
  static std::shared_ptr<apex::nn::Module> make_model(const StepCase& c) {
    apex::manual_seed(0);
    auto model = apex::models::create(c.arch, {.num_classes = c.classes, .in_channels = c.channels});
    if (apex::is_16bit(c.dtype))
      apex::fp16_utils::convert_network(*model, c.dtype);
    else
      model->to(c.dtype);
    model->to(c.device, c.channels_last ? apex::MemoryFormat::channels_last : apex::MemoryFormat::contiguous);
    return model;
  }

  static std::unique_ptr<apex::optimizers::Optimizer> make_optimizer(const StepCase& c, const apex::nn::Module& model) {
    const bool masters = apex::is_16bit(c.dtype);
    if (c.optimizer == "adam")
      return std::make_unique<apex::optimizers::FusedAdam>(
          model.parameters(),
          apex::optimizers::AdamOptions{.lr = 1e-3, .weight_decay = 1e-2, .master_weights = masters});
    if (c.optimizer == "zero-adam")
      return std::make_unique<apex::contrib::optimizers::DistributedFusedAdam>(
          model.parameters(), apex::contrib::optimizers::DistributedFusedAdamOptions{
                                  .lr = 1e-3,
                                  .weight_decay = 1e-2,
                                  // A shard of f32 parameters would only repeat what the parameters say.
                                  .sharding = {.bucket_cap_mb = 25, .store_params = masters}});
    return std::make_unique<apex::optimizers::FusedSGD>(
        model.parameters(),
        apex::optimizers::SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4, .master_weights = masters});
  }

  void body() {
    const Tensor logits = ddp_ ? (*ddp_)(x_) : (*model_)(x_);
    const Tensor loss = functional::cross_entropy(logits, labels_);
    apex::backward(inv_scale_ ? functional::scale(loss, case_.loss_scale) : loss);
    optimizer_->step(apex::optimizers::StepScaling{.inv_scale = inv_scale_});
    apex::kernels::copy(loss_.context(), loss_.view(), apex::ConstView(loss.view()));
    optimizer_->zero_grad(true);
  }

  std::vector<Tensor> written() const {
    std::vector<Tensor> out = model_->parameters();
    for (const Tensor& t : model_->buffers()) out.push_back(t);
    if (optimizer_->in_parts()) {  // nobody else sees parts
      out.push_back(loss_);
      return out;
    }
    optimizer_->for_each_state([&](const Tensor&, const std::string&, const Tensor& value) { out.push_back(value); });
    out.push_back(loss_);
    return out;
  }

  StepCase case_;
  std::shared_ptr<apex::nn::Module> model_;
  std::unique_ptr<apex::optimizers::Optimizer> optimizer_;
  std::unique_ptr<apex::parallel::DistributedDataParallel> ddp_;
  std::unique_ptr<apex::train::StepGraph> graph_;
  Tensor x_, labels_, loss_, inv_scale_;
};

/// PyTorch's side, through its process.
class TorchStep {
 public:
  TorchStep(const StepCase& c, const StepOptions& options, const apex::dist::Session* session)
      : process_(options.python, kTorchStep, {arguments(c, options, session)}) {}

  struct Answer {
    double peak_bytes = 0, ms = 0;
  };
  Answer run(int steps) {
    std::istringstream text(process_.ask(std::to_string(steps)));
    Answer answer;
    if (!(text >> answer.peak_bytes >> answer.ms)) apex::fail(apex::Kind::data, "the PyTorch process makes no sense");
    return answer;
  }
  const std::string& version() const { return process_.greeting(); }

 private:
  static std::string arguments(const StepCase& c, const StepOptions& options, const apex::dist::Session* session) {
    const int rank = session == nullptr ? 0 : session->rank(), world = session == nullptr ? 1 : session->size();
    std::int64_t port = 29500 + getpid() % 5000;
    if (world > 1) port = session->world().all_reduce(rank == 0 ? port : 0, apex::dist::ReduceOp::max);
    return nlohmann::json{{"arch", c.arch},
                          {"image", c.image},
                          {"batch", c.batch},
                          {"channels", c.channels},
                          {"classes", c.classes},
                          {"threads", c.threads},
                          {"device", c.device.is_cuda() ? apex::concat("cuda:", c.device.index) : "cpu"},
                          {"dtype", apex::name_of(c.dtype)},
                          {"mode", options.peer},
                          {"rank", rank},
                          {"world", world},
                          {"port", port}}
        .dump();
  }

  TorchProcess process_;
};

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (file) bytes << file.rdbuf();  // nothing, and no exception, where it is a folder
  return bytes.str();
}

void write_plans(const std::string& path) {
  const std::string temporary = path + ".new";
  std::ofstream file(temporary, std::ios::binary);
  file << apex::kernels::export_plans();
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0)
    apex::fail(apex::Kind::data, apex::concat("cannot write ", path));
}

struct Memory {
  double peak = 0, graph = 0, device = 0;  ///< bytes: of tensors at their highest; of graphs; all, as the driver says
};

Memory memory_of([[maybe_unused]] apex::Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    const auto stats = apex::cuda::memory_stats(device);
    return {static_cast<double>(stats.peak), static_cast<double>(stats.graphs),
            static_cast<double>(stats.total - stats.free)};
  }
#endif
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {1024.0 * static_cast<double>(usage.ru_maxrss), 0, 0};
}

struct Result {
  double ms = 0, peer_ms = 0, ratio = 0, ratio_low = 0, ratio_high = 0, peer_peak = 0, first_step_s = 0;
  double first_loss = 0, last_loss = 0, optimizer_bytes = 0;
  Memory memory;
};

/// The slowest rank's time is the job's.
double over_ranks(const apex::dist::Session* session, double value) {
  return session == nullptr ? value : session->world().all_reduce(value, apex::dist::ReduceOp::max);
}

void count_host_waits(Step& step, const StepOptions& options, apex::Device device, const apex::dist::Session* session) {
  Probe probe;
  synchronize(device);
  probe.begin();
  for (int i = 0; i < options.count_syncs; ++i) step.once();
  const HostWaits waits = probe.end();
  synchronize(device);
  std::printf(
      "rank %d, %d steps: %ld synchronisations, %ld blocking copies, %ld copies of pageable memory, %ld "
      "allocations outside the pool%s%s; %ld kernels and %ld graphs launched\n",
      session == nullptr ? 0 : session->rank(), options.count_syncs, waits.synchronizations, waits.blocking_copies,
      waits.pageable_copies, waits.allocations, waits.total() > 0 ? "; first: " : "", waits.first,
      waits.kernel_launches, waits.graph_launches);
  const double total = over_ranks(session, static_cast<double>(waits.total()));
  if (total > 0) apex::fail(apex::Kind::state, "steps made the host wait");
}

void check_graph(const Step& step) {
  if (step.graph() == nullptr) return;
  if (!step.graph()->why_not().empty())
    apex::fail(apex::Kind::state, apex::concat("no graph: ", step.graph()->why_not()));
  if (!step.graph()->replays()) apex::fail(apex::Kind::state, "the step was not captured");
}

std::string shape_of(const StepCase& c, int ranks) {
  return apex::concat(c.arch, ' ', c.channels, 'x', c.image, 'x', c.image, " batch ", c.batch,
                      ranks > 1 ? apex::concat(" x ", ranks, " ranks") : std::string(), ' ', c.dtype,
                      c.optimizer == "sgd" ? "" : " " + c.optimizer);
}

void print(const StepCase& c, const StepOptions& o, const Result& r, const Step& step, int ranks,
           const std::string& version) {
  constexpr double kMiB = 1048576.0;
  const double images = 1e3 * c.batch * ranks;
  std::printf("step %s", shape_of(c, ranks).c_str());
  if (c.device.is_cpu()) std::printf(" %d threads", c.threads);
  if (step.graph() != nullptr) std::printf(", graph of %zu kernels", step.graph()->kernel_nodes());
  std::printf(": ours %.*f ms, %.0f images/s, peak %.0f MiB", c.device.is_cuda() ? 3 : 1, r.ms, images / r.ms,
              r.memory.peak / kMiB);
  if (c.device.is_cuda()) std::printf(" (graph %.0f, device %.0f)", r.memory.graph / kMiB, r.memory.device / kMiB);
  if (r.peer_ms > 0)
    std::printf(" | torch %s %s %.*f ms, %.0f images/s, peak %.0f MiB | ratio %.3f (%.3f to %.3f), memory %.3f",
                version.c_str(), o.peer.c_str(), c.device.is_cuda() ? 3 : 1, r.peer_ms, images / r.peer_ms,
                r.peer_peak / kMiB, r.ratio, r.ratio_low, r.ratio_high, r.memory.peak / r.peer_peak);
  std::printf(" | optimizer state %.1f MiB", r.optimizer_bytes / kMiB);
  std::printf(" | first step after %.1f s | loss %.4f -> %.4f\n", r.first_step_s, r.first_loss, r.last_loss);
}

void write_json(const StepCase& c, const StepOptions& o, const Result& r, const Step& step, int ranks,
                const std::string& version) {
  if (o.json.empty()) return;
  nlohmann::json out{{"command", "step"},
                     {"case", shape_of(c, ranks)},
                     {"device", device_name(c.device)},
                     {"versions", device_versions(c.device)},
                     {"ranks", ranks},
                     {"channels_last", c.channels_last},
                     {"loss_scale", c.loss_scale},
                     {"ms", r.ms},
                     {"images_per_s", 1e3 * c.batch * ranks / r.ms},
                     {"peak_bytes", r.memory.peak},
                     {"graph_bytes", r.memory.graph},
                     {"device_bytes", r.memory.device},
                     {"optimizer_bytes", r.optimizer_bytes},
                     {"first_step_s", r.first_step_s},
                     {"loss", {r.first_loss, r.last_loss}}};
  if (step.graph() != nullptr) out["graph_kernels"] = step.graph()->kernel_nodes();
  if (r.peer_ms > 0)
    out["peer"] = {
        {"version", version}, {"mode", o.peer}, {"ms", r.peer_ms}, {"ratio", r.ratio}, {"peak_bytes", r.peer_peak}};
  std::ofstream file(o.json);
  file << out.dump(1) << '\n';
  if (!file.flush()) apex::fail(apex::Kind::data, apex::concat("cannot write ", o.json));
}

}  // namespace

void run_step(StepCase c, const StepOptions& options) {
  std::optional<apex::dist::Session> own_session;
  if (apex::train::launched_with_others() || c.optimizer == "zero-adam")
    own_session.emplace(apex::dist::SessionOptions{.device = c.device.kind});
  apex::dist::Session* session = own_session ? &*own_session : nullptr;
  if (session != nullptr && apex::train::say_and_end("apex_bench", "", *session)) return;
  const bool talks = session == nullptr || session->rank() == 0;
  const int ranks = session == nullptr ? 1 : session->size();
  if (session != nullptr) c.device = session->device();
  omp_set_num_threads(c.threads);

  if (c.device.is_cuda()) {
    apex::kernels::set_plan_choice(apex::kernels::PlanChoice::timed);
    if (!options.plan_cache.empty()) {
      const std::size_t plans = apex::kernels::import_plans(contents_of(options.plan_cache));
      if (talks) std::printf("%zu plans from %s\n", plans, options.plan_cache.c_str());
    }
  }
  Result r;
  Step step(c, session, options.cuda_graph);
  step.once();
  r.first_loss = step.last_loss();
  r.first_step_s = over_ranks(session, seconds_since(options.started));
  std::unique_ptr<TorchStep> torch;
  if (!options.peer.empty()) torch = std::make_unique<TorchStep>(c, options, session);
  // Plans are settled, state exists, DDP has its buckets, and a graph is captured after two eager steps.
  step.time(c.device.is_cuda() ? 5 : 1);
  if (options.cuda_graph) check_graph(step);
  if (torch) torch->run(1);

  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    ours.push_back(over_ranks(session, step.time(options.steps)));
    if (!torch) continue;
    const auto answer = torch->run(options.steps);
    theirs.push_back(over_ranks(session, answer.ms));
    r.peer_peak = answer.peak_bytes;
    ratios.push_back(ours.back() / theirs.back());
  }
  r.ms = median(ours);
  r.memory = memory_of(c.device);
  if (torch) {
    r.peer_ms = median(theirs);
    r.ratio = median(ratios);
    r.ratio_low = *std::min_element(ratios.begin(), ratios.end());
    r.ratio_high = *std::max_element(ratios.begin(), ratios.end());
  }
  r.last_loss = step.last_loss();
  r.optimizer_bytes = over_ranks(session, step.optimizer_bytes());
  const std::string version = torch ? torch->version() : std::string();
  if (talks) {
    print(c, options, r, step, ranks, version);
    std::fflush(stdout);
    write_json(c, options, r, step, ranks, version);
    if (c.device.is_cuda() && !options.plan_cache.empty() && apex::kernels::plans_chosen() > 0)
      write_plans(options.plan_cache);
  }
  // A step that does not learn is not the step that was asked for: one batch again and again must be learnt.
  if (!std::isfinite(r.last_loss) || r.last_loss >= r.first_loss)
    apex::fail(apex::Kind::numerical, "the loss did not fall: the timing is void");
  if (options.count_syncs > 0) count_host_waits(step, options, c.device, session);
}

}  // namespace bench
