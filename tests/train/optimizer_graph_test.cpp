// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Optimizer steps in a CUDA graph: each replay reads rate, step count, scale and flag on the device. On the CPU the
// same bodies run eagerly, which is what the replays must equal.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>

#include "apex/amp/loss_scaler.hpp"
#include "apex/autograd.hpp"
#include "apex/contrib/clip_grad.hpp"
#include "apex/optimizers/fused_adagrad.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_lamb.hpp"
#include "apex/optimizers/fused_novograd.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/parallel/larc.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/step_graph.hpp"
#include "lib/optimizers_support.hpp"

namespace apex::train {
namespace {

using optimizers::Optimizer;
using optimizers::StepScaling;
using test::expect_close;
using test::kGrads;
using test::kP;
using test::leaf;
using test::values;
using test::vector_of;

TEST(OptimizerGraph, OPT_10_A10_ReplaysReadRateAndCount) {
  const Tensor p = leaf(vector_of(kP)), g = test::zeros({4});
  set_grad(p, g);
  optimizers::FusedAdam optimizer({p}, {.lr = 0.1, .capturable = true});
  optimizer.init_state();
  optimizers::FusedAdam loads_kernels({leaf(vector_of(kP))}, {.capturable = true});
  set_grad(loads_kernels.groups()[0].params[0], vector_of(kP));
  loads_kernels.step();
  StepGraph graph(test::device(), {.warm_up = 0});
  const std::vector<std::vector<double>> want = {{0.9, -1.9, 0.4, 3.0999999},
                                                 {0.80678201, -1.8733662, 0.3733663, 3.1266336},
                                                 {0.82414317, -1.8630723, 0.34046072, 3.1362104}};
  for (std::size_t t = 0; t < 3; ++t) {
    if (t == 2) optimizer.set_lr(0.05);
    copy_(g, vector_of(kGrads[t]));
    graph.run("step", [&] { optimizer.step(); });
    EXPECT_EQ(graph.replays(), test::on_cuda()) << graph.why_not();
    expect_close(values(p), want[t]);
    EXPECT_EQ(optimizer.state_of(p).at("step").item(), static_cast<double>(t + 1));
  }
}

struct Parts {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)> make;
};

template <class T, class O>
Parts parts(const char* name, O options) {
  options.capturable = true;
  options.master_weights = true;
  return {name, [options](std::vector<Tensor> p) { return std::make_unique<T>(std::move(p), options); }};
}

/// Replays equal eager steps to the last bit, through a skipped step and a change of rate, with clipping before.
TEST(OptimizerGraph, EveryOptimizerReplaysAsItSteps) {
  using namespace optimizers;
  const std::vector<Parts> all = {
      parts<FusedAdam>("adam", AdamOptions{.lr = 0.1, .weight_decay = 0.1}),
      parts<FusedLAMB>("lamb", LambOptions{.lr = 0.1}),
      parts<FusedLAMB>("lamb with its update in the gradients", LambOptions{.lr = 0.1, .apex_overwrite_grad = true}),
      parts<FusedNovoGrad>("novograd", NovoGradOptions{.lr = 0.1, .weight_decay = 0.1}),
      parts<FusedAdagrad>("adagrad", AdagradOptions{.lr = 0.1, .weight_decay = 0.1}),
      parts<FusedSGD>("sgd", SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}),
  };
  for (const auto& [name, make] : all) {
    for (const bool larc : {false, true}) {
      SCOPED_TRACE(concat(name, larc ? " with LARC" : ""));
      const auto run = [&](bool in_graph) {
        const Tensor p = leaf(vector_of(kP)), half = leaf(vector_of(kP, DType::bf16));
        const Tensor g = test::zeros({4}), half_g = test::zeros({4}, DType::bf16);
        set_grad(p, g);
        set_grad(half, half_g);
        const auto optimizer = make({p, half});
        optimizer->init_state();
        parallel::LARC around(*optimizer);
        const StepScaling scaling{.found_inf = test::zeros({1}), .inv_scale = test::full({1}, 0.5)};
        const auto body = [&] {
          contrib::clip_grad::clip_grad_norm_({p, half}, 1.0);
          if (larc)
            around.step(scaling);
          else
            optimizer->step(scaling);
        };
        StepGraph graph(test::device(), {.warm_up = 0});
        for (std::size_t t = 0; t < 6; ++t) {
          copy_(g, vector_of(kGrads[t % 3]));
          copy_(half_g, vector_of(kGrads[t % 3], DType::bf16));
          fill_(scaling.found_inf, t == 0 || t == 3 ? 1 : 0);
          fill_(scaling.inv_scale, t < 2 ? 0.5 : 0.25);
          optimizer->set_lr(t < 4 ? 0.1 : 0.03);
          if (in_graph)
            graph.run("step", body);
          else
            body();
          if (in_graph) {
            EXPECT_EQ(graph.replays(), test::on_cuda()) << graph.why_not();
          }
          EXPECT_EQ(optimizer->last_step_skipped(), t == 0 || t == 3);
        }
        std::vector<std::vector<double>> out = {values(p), values(half), values(g), values(half_g)};
        optimizer->for_each_state(
            [&](const Tensor&, const std::string&, const Tensor& value) { out.push_back(values(value)); });
        return out;
      };
      const auto eager = run(false);
      EXPECT_EQ(run(true), eager);
      EXPECT_NE(eager[0], kP);
    }
  }
}

/// Replays count the skips as update() does, and the host learns of them without asking the device.
TEST(OptimizerGraph, AMP_7_1_SkipsInReplaysAreWarnedOf) {
  const auto body = [](amp::LossScaler& scaler, const Tensor& g) {
    scaler.check({g});
    scaler.update();
  };
  const Tensor g = test::full({4}, std::numeric_limits<double>::infinity());
  amp::LossScaler loads_kernels({}, test::device()), scaler({}, test::device());
  body(loads_kernels, g);
  StepGraph graph(test::device(), {.warm_up = 0});
  ::testing::internal::CaptureStderr();
  for (int t = 0; t < 60; ++t) {
    graph.run("step", [&] { body(scaler, g); });
    EXPECT_EQ(graph.replays(), test::on_cuda()) << graph.why_not();
  }
  EXPECT_EQ(scaler.loss_scale(), 0x1p-44);  // waits: 2^16 halved 60 times
  scaler.warn_of_skips();
  scaler.warn_of_skips();
  const std::string text = ::testing::internal::GetCapturedStderr();
  const auto at = text.find("not finite whatever the scale");
  EXPECT_NE(at, text.npos) << text;
  EXPECT_EQ(text.find("not finite whatever the scale", at + 1), text.npos) << text;
}

}  // namespace
}  // namespace apex::train
