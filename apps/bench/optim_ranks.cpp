// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The optimizer step over several ranks: replicated and spread.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apex/autograd.hpp"
#include "apex/collectives/process_group.hpp"
#include "apex/contrib/optimizers/distributed_fused_adam.hpp"
#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/random.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "optim.hpp"

namespace bench {
namespace {

using apex::DType;
using apex::Tensor;
using Clock = std::chrono::steady_clock;
namespace kernels = apex::kernels;

constexpr int kRounds = 5;
// An eps as large as the gradients makes the update depend on their size, so that a wrong sum shows.
constexpr double kLr = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1, kDecay = 0.01;
constexpr std::uint64_t kParamSeed = 90, kSlopeSeed = 91;

/// y = x + the sum of <slope, p> over the parameters p, of which only the gradients are worked out: backward reaches
/// the parameters one by one, the last one first, and makes each gradient by one kernel, slope times what arrives.
class Slopes : public apex::nn::Module {
 public:
  Slopes(std::vector<Tensor> params, std::vector<Tensor> slopes) : slopes_(std::move(slopes)) {
    for (std::size_t i = 0; i < params.size(); ++i)
      params_.push_back(register_parameter(apex::concat("p", i), params[i]));
  }

  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const Tensor& slope = slopes_[i];
      y = apex::record(y.detach(), {.name = "slope",
                                    .inputs = {y, params_[i]},
                                    .backward = [slope](const Tensor& dy, std::span<const bool> needs) {
                                      const Tensor g = apex::empty_like(slope);
                                      kernels::binary(g.context(), g.view(), slope.view(), dy.view(),
                                                      kernels::BinaryOp::mul);
                                      return apex::Gradients{needs[0] ? dy : Tensor(), g};
                                    }});
    }
    return y;
  }
  std::string_view kind() const override { return "Slopes"; }

 private:
  std::vector<Tensor> params_, slopes_;
};

/// One way to step: a model of its own, steps counted.
struct Side {
  std::shared_ptr<apex::nn::Module> model;
  std::unique_ptr<apex::parallel::DistributedDataParallel> ddp;
  std::unique_ptr<apex::optimizers::Optimizer> optimizer;
  Tensor x;

  void step() {
    apex::backward(ddp ? (*ddp)(x) : (*model)(x));
    optimizer->step();
    optimizer->zero_grad(true);
  }
};

Side make_side(const apex::dist::Session& session, const Sizes& sizes, const std::vector<Tensor>& slopes, bool spread,
               double bucket_mb) {
  const auto params = tensors(sizes, DType::f32, session.device());
  refill(params, kParamSeed);
  Side side;
  side.model = std::make_shared<Slopes>(params, slopes);
  side.x = apex::ones({1}, DType::f32, session.device());
  if (spread) {
    // A shard of f32 parameters would only repeat what the parameters say.
    side.optimizer = std::make_unique<apex::contrib::optimizers::DistributedFusedAdam>(
        side.model->parameters(), apex::contrib::optimizers::DistributedFusedAdamOptions{
                                      .lr = kLr,
                                      .beta1 = kBeta1,
                                      .beta2 = kBeta2,
                                      .eps = kEps,
                                      .weight_decay = kDecay,
                                      .sharding = {.bucket_cap_mb = bucket_mb, .store_params = false}});
    return side;
  }
  side.ddp = std::make_unique<apex::parallel::DistributedDataParallel>(
      side.model, session.world(), apex::parallel::DistributedDataParallelOptions{.bucket_cap_mb = bucket_mb});
  side.optimizer = std::make_unique<apex::optimizers::FusedAdam>(
      side.model->parameters(),
      apex::optimizers::AdamOptions{.lr = kLr, .beta1 = kBeta1, .beta2 = kBeta2, .eps = kEps, .weight_decay = kDecay});
  return side;
}

/// Milliseconds of a step, `runs` of them queued one after the other; the slowest rank's.
double time_ms(const apex::dist::Session& session, Side& side, int runs) {
  synchronize(session.device());
  session.world().barrier();
  const auto start = Clock::now();
  for (int i = 0; i < runs; ++i) side.step();
  synchronize(session.device());
  const double ms = 1e3 * std::chrono::duration<double>(Clock::now() - start).count() / runs;
  return session.world().all_reduce(ms, apex::dist::ReduceOp::max);
}

/// The largest difference between two lists of tensors; NaN where one of them is.
double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  const apex::Device device = a.front().device();
  const Tensor flag = apex::zeros({1}, DType::i32, device), most = apex::zeros({1}, DType::f32, device);
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor difference = apex::empty_like(a[i]);
    kernels::binary(most.context(), difference.view(), a[i].view(), b[i].view(), kernels::BinaryOp::sub);
    const std::vector<apex::ConstView> list{difference.view()};
    kernels::multi_tensor_max_norm(most.context(), flag.view(), most.view(), {}, list);
    const double here = values_of(most)[0];
    if (!(here <= largest)) largest = here;
    if (std::isnan(largest)) break;
  }
  return largest;
}

/// Adam in double from the slopes' mean over the ranks, at a few places.
void check_samples(const apex::dist::Session& session, Check& check, const std::vector<Tensor>& slopes,
                   const std::vector<Tensor>& got, int steps) {
  apex::NoGradGuard no_grad;
  std::vector<double> begin;
  for (std::size_t t = 0; t < got.size(); t += 11) {
    const Tensor first = apex::empty_like(got[t]);
    kernels::uniform(first.context(), first.view(), -1, 1, {.seed = kParamSeed, .offset = t});
    for (const std::int64_t i : {std::int64_t{0}, first.numel() / 2, first.numel() - 1}) begin.push_back(one(first, i));
  }
  std::size_t k = 0;
  sample(got, [&](std::size_t t, std::int64_t i) {
    const double g = session.world().all_reduce(one(slopes[t], i), apex::dist::ReduceOp::sum) / session.size();
    double p = begin[k++], m = 0, v = 0;
    for (int step = 1; step <= steps; ++step) {
      m = kBeta1 * m + (1 - kBeta1) * g;
      v = kBeta2 * v + (1 - kBeta2) * g * g;
      const double u =
          m / (1 - std::pow(kBeta1, step)) / (std::sqrt(v / (1 - std::pow(kBeta2, step))) + kEps) + kDecay * p;
      p -= kLr * u;
    }
    check.near("param", i, one(got[t], i), p, 1e-5, 1e-5);
  });
}

struct Row {
  std::string title;
  double ddp_ms = 0, zero_ms = 0, ratio = 0, low = 0, high = 0, ddp_bytes = 0, zero_bytes = 0;
  std::string problem;
};

Row measure(const apex::dist::Session& session, const Sizes& sizes, const RankedOptimOptions& options,
            std::string title) {
  Row row{.title = std::move(title)};
  const auto slopes = tensors(sizes, DType::f32, session.device());
  refill(slopes, kSlopeSeed + static_cast<std::uint64_t>(session.rank()), 0.5);
  Side ddp = make_side(session, sizes, slopes, false, options.bucket_mb),
       zero = make_side(session, sizes, slopes, true, options.bucket_mb);
  std::vector<double> ddp_ms, zero_ms, ratios;
  constexpr int kWarm = 3;  // DDP makes its plan in the first step
  time_ms(session, ddp, kWarm), time_ms(session, zero, kWarm);
  for (int round = 0; round < kRounds; ++round) {
    ddp_ms.push_back(time_ms(session, ddp, options.runs));
    zero_ms.push_back(time_ms(session, zero, options.runs));
    ratios.push_back(zero_ms.back() / ddp_ms.back());
  }
  row.ddp_ms = median(std::move(ddp_ms)), row.zero_ms = median(std::move(zero_ms));
  row.low = *std::min_element(ratios.begin(), ratios.end()), row.high = *std::max_element(ratios.begin(), ratios.end());
  row.ratio = median(std::move(ratios));
  row.ddp_bytes = state_bytes(*ddp.optimizer);
  // The shards are not of one size where the last bucket is not full: the fullest rank's.
  row.zero_bytes = session.world().all_reduce(state_bytes(*zero.optimizer), apex::dist::ReduceOp::max);

  Check check;
  const auto of_ddp = ddp.model->parameters(), of_zero = zero.model->parameters();
  // Sums of more than two ranks may be added in another order.
  check.near("difference", 0, largest_difference(of_ddp, of_zero), 0, 0, session.size() > 2 ? 1e-5 : 1e-6);
  check_samples(session, check, slopes, of_zero, kWarm + kRounds * options.runs);
  row.problem = check.problem();
  if (session.world().all_reduce(std::int64_t{row.problem.empty()}, apex::dist::ReduceOp::min) == 0 &&
      row.problem.empty())
    row.problem = "another rank's parameters";
  return row;
}

}  // namespace

double state_bytes(const apex::optimizers::Optimizer& optimizer) {
  if (const auto* spread = dynamic_cast<const apex::contrib::optimizers::ShardedOptimizer*>(&optimizer))
    return static_cast<double>(spread->state_bytes());
  double bytes = 0;
  optimizer.for_each_state(
      [&](const Tensor&, const std::string&, const Tensor& value) { bytes += static_cast<double>(value.bytes()); });
  return bytes;
}

void run_ranked_optim(const apex::dist::Session& session, const RankedOptimOptions& options) {
  const bool talks = session.rank() == 0;
  std::vector<Sizes> models{resnet50(), bert_large()};
  if (session.device().is_cpu()) {
    models[1].name += " / 64";
    for (std::int64_t& n : models[1].counts) n = (n + 63) / 64;
  }
  if (talks && !options.list) {
    std::printf("apex_bench optim on %d ranks, %s, buckets of %g MiB, median of %d x %d steps\n", session.size(),
                device_name(session.device()).c_str(), options.bucket_mb, kRounds, options.runs);
    std::printf("%-42s %10s %10s %7s %-17s %10s %10s %7s\n", "row: DistributedFusedAdam", "DDP ms", "zero ms", "ratio",
                "", "DDP MiB", "zero MiB", "ratio");
  }
  nlohmann::json rows = nlohmann::json::array();
  int done = 0, wrong = 0;
  for (const Sizes& model : models) {
    const std::string title =
        apex::concat("zero AdamW ", model.name, " f32, ", model.counts.size(), " tensors x ", session.size());
    if (!options.skip.empty() && title.find(options.skip) != std::string::npos) continue;
    if (title.find(options.only) == std::string::npos) continue;
    ++done;
    if (options.list) {
      if (talks) std::printf("%s\t\n", title.c_str());
      continue;
    }
    const Row row = measure(session, model, options, title);
    wrong += !row.problem.empty();
    if (!talks) continue;
    constexpr double kMiB = 1048576.0;
    std::printf("%-42s %10.3f %10.3f %7.3f (%.3f to %.3f)  %10.1f %10.1f %7.3f%s%s\n", row.title.c_str(), row.ddp_ms,
                row.zero_ms, row.ratio, row.low, row.high, row.ddp_bytes / kMiB, row.zero_bytes / kMiB,
                row.zero_bytes / row.ddp_bytes, row.problem.empty() ? "" : "  WRONG: ", row.problem.c_str());
    std::fflush(stdout);
    rows.push_back({{"title", row.title},
                    {"ddp_ms", row.ddp_ms},
                    {"zero_ms", row.zero_ms},
                    {"ratio", row.ratio},
                    {"ddp_state_bytes", row.ddp_bytes},
                    {"zero_state_bytes", row.zero_bytes}});
    if (!row.problem.empty()) rows.back()["problem"] = row.problem;
  }
  if (done == 0)
    apex::fail(apex::Kind::argument, apex::concat("no row is left: --only '", options.only, "' --skip '", options.skip,
                                                  "' fit none of the titles"));
  if (options.list) return;
  if (talks) std::printf("%d rows, %d wrong\n", done, wrong);
  if (talks && !options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"command", "optim"},
                           {"ranks", session.size()},
                           {"device", device_name(session.device())},
                           {"versions", device_versions(session.device())},
                           {"bucket_mb", options.bucket_mb},
                           {"rows", rows}}
                .dump(1)
         << '\n';
    if (!file.flush()) apex::fail(apex::Kind::data, apex::concat("cannot write ", options.json));
  }
  if (wrong > 0)
    apex::fail(apex::Kind::numerical, apex::concat(wrong, " rows had wrong results: their times are void"));
}

}  // namespace bench
