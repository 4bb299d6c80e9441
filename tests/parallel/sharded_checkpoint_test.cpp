// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints of sharded optimizers, saved by all ranks and resumed by fewer, with other buckets and other options.
#include <gtest/gtest.h>
#include <unistd.h>

#include "apex/checkpoint.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_lamb.hpp"
#include "sharded.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;
using test::device;
using test::DistributedFusedAdam;
using test::DistributedFusedAdamOptions;
using test::ShardedOptimizer;
using test::world;

constexpr double kSmallCap = 1024.0 / 1048576;

class Model : public nn::Module {
 public:
  explicit Model(DType dtype, double value = 1.0) {
    const auto add = [&](const char* name, const Dims& sizes, MemoryFormat format) {
      params.push_back(register_parameter(
          name, test::parameter(
                    sizes, [&](auto i) { return value * static_cast<double>(i % 19 - 9) / 16.0; }, dtype, format)));
    };
    add("conv", {4, 3, 3, 3}, MemoryFormat::channels_last);
    add("linear", {31, 17}, MemoryFormat::contiguous);
    add("bias", {31}, MemoryFormat::contiguous);
    add("none", {0}, MemoryFormat::contiguous);
  }
  std::vector<Tensor> params;
};

/// Gradients that add up to the same, exactly, over any number of ranks of the group.
void step(ShardedOptimizer& optimizer, const Model& model, int number) {
  optimizer.zero_grad();
  std::vector<std::pair<Tensor, Tensor>> grads;
  for (std::size_t k = 0; k < model.params.size(); ++k)
    grads.emplace_back(model.params[k], test::gradient_of(model.params[k], [&, k](auto i) {
                         return static_cast<double>((i * 5 + static_cast<std::int64_t>(k) + 3 * number) % 13 - 6) / 8.0;
                       }));
  test::run_backward(grads);
  optimizer.step();
}

std::vector<std::vector<double>> values_of(const Model& model) {
  std::vector<std::vector<double>> all;
  for (const Tensor& p : model.params) all.push_back(test::to_f64(p));
  return all;
}

class ShardedCheckpoints : public ::testing::Test {
 protected:
  ShardedCheckpoints() {
    const std::int64_t number = world().all_reduce(static_cast<std::int64_t>(getpid()), dist::ReduceOp::min);
    path_ = fs::temp_directory_path() / concat("apex_test_sharded_", number);
    if (world().rank() == 0) fs::remove_all(path_);
    world().barrier();
  }
  ~ShardedCheckpoints() override {
    world().barrier();
    if (world().rank() == 0) fs::remove_all(path_);
  }
  fs::path path_;
};

struct Form {
  std::string name;
  DType model = DType::f32;
  std::function<void(test::ShardingOptions&)> change = [](test::ShardingOptions&) {};
};
void PrintTo(const Form& f, std::ostream* out) { *out << f.name; }
std::vector<Form> forms() {
  using S = test::ShardingOptions;
  return {{"f32"},
          {"f32_not_stored", DType::f32, [](S& s) { s.store_params = false; }},
          {"f32_contiguous", DType::f32, [](S& s) { s.contiguous_param_buffer = s.contiguous_grad_buffer = true; }},
          {"bf16_masters", DType::bf16},
          {"bf16_remainders", DType::bf16,
           [](S& s) { s.store_params = false, s.store_param_remainders = true, s.param_sync_dtype = DType::bf16; }},
          {"f16_overlapped", DType::f16, [](S& s) { s.overlap_param_sync = true; }}};
}

class Resumed : public ShardedCheckpoints, public ::testing::WithParamInterface<Form> {};

TEST_P(Resumed, ByAnyNumberOfRanks) {  // OPT-10.A44
  const Form& form = GetParam();
  DistributedFusedAdamOptions options{.lr = 0.01, .weight_decay = 0.1};
  options.sharding.bucket_cap_mb = kSmallCap;
  form.change(options.sharding);
  auto model = std::make_shared<Model>(form.model);
  DistributedFusedAdam optimizer(model->params, options);
  for (int i = 0; i < 2; ++i) step(optimizer, *model, i);
  checkpoint::save(path_, {.model = model, .optimizer = &optimizer, .step = 2});
  const auto at_save = values_of(*model);
  const auto masters = optimizer.state_dict();
  for (int i = 2; i < 5; ++i) step(optimizer, *model, i);
  optimizer.param_sync();
  const auto want = values_of(*model);

  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    const auto group = world().split(world().rank() < ranks ? 0 : -1, 0, "resume");
    if (!group) continue;
    DistributedFusedAdamOptions other{.lr = 0.5};
    other.sharding.process_group = group;
    other.sharding.bucket_cap_mb = 2.5 * kSmallCap;
    form.change(other.sharding);
    auto again = std::make_shared<Model>(form.model, -3.0);
    auto turned = again->params;
    std::reverse(turned.begin(), turned.end());  // another order of layout
    DistributedFusedAdam resumed(turned, other);
    const auto loaded = checkpoint::load(path_, {.model = again, .optimizer = &resumed}, {.group = group});
    EXPECT_EQ(loaded.world_size, world().size());
    resumed.param_sync();
    EXPECT_EQ(values_of(*again), at_save) << ranks << " ranks";
    EXPECT_EQ(resumed.groups()[0].number("lr"), 0.01);
    const auto state = resumed.state_dict();
    for (std::size_t k = 0; k < turned.size(); ++k)
      for (const auto& [key, value] : masters.state[turned.size() - 1 - k])
        EXPECT_EQ(test::to_f64(state.state[k].at(key)), test::to_f64(value)) << key << " of " << k;
    for (int i = 2; i < 5; ++i) step(resumed, *again, i);
    resumed.param_sync();
    const auto got = values_of(*again);
    for (std::size_t k = 0; k < got.size(); ++k)
      for (std::size_t i = 0; i < got[k].size(); ++i)
        ASSERT_NEAR(got[k][i], want[k][i],
                    form.model == DType::f32 ? 2e-6 * std::abs(want[k][i]) + 1e-7 : std::abs(want[k][i]) / 128)
            << ranks << " ranks, " << k << ',' << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Sharded, Resumed, ::testing::ValuesIn(forms()),
                         [](const auto& tested) { return tested.param.name; });

/// Every rank gives the same gradients.
void plain_step(optimizers::Optimizer& optimizer, const Model& model, int number) {
  for (std::size_t k = 0; k < model.params.size(); ++k) {
    const Tensor g = empty_like(model.params[k]);
    copy_(g, test::from_function(g.sizes(), g.dtype(), device(), [&](auto i) {
            return static_cast<double>((i * 5 + static_cast<std::int64_t>(k) + 3 * number) % 13 - 6) / 8.0;
          }));
    set_grad(model.params[k], g);
  }
  optimizer.step();
  optimizer.zero_grad();
}

TEST_F(ShardedCheckpoints, AdamAndZeroAdamReadEachOther) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (world().rank() == 0) fs::remove_all(path_);
    world().barrier();
    auto plain_model = std::make_shared<Model>(dtype), sharded_model = std::make_shared<Model>(dtype, 2.0);
    optimizers::FusedAdam plain(plain_model->params, {.lr = 0.01, .master_weights = true});
    DistributedFusedAdamOptions options{.lr = 0.3};
    options.sharding.bucket_cap_mb = kSmallCap;
    DistributedFusedAdam sharded(sharded_model->params, options);
    for (int i = 0; i < 2; ++i) plain_step(plain, *plain_model, i);
    checkpoint::save(path_, {.model = plain_model, .optimizer = &plain, .step = 2});
    checkpoint::load(path_, {.model = sharded_model, .optimizer = &sharded});
    EXPECT_EQ(values_of(*sharded_model), values_of(*plain_model));
    plain_step(plain, *plain_model, 2);
    step(sharded, *sharded_model, 2);
    EXPECT_EQ(values_of(*sharded_model), values_of(*plain_model));

    checkpoint::save(path_, {.model = sharded_model, .optimizer = &sharded, .step = 3});
    auto back_model = std::make_shared<Model>(dtype, -1.0);
    optimizers::FusedAdam back(back_model->params, {.lr = 0.7, .master_weights = true});
    checkpoint::load(path_, {.model = back_model, .optimizer = &back});
    plain_step(plain, *plain_model, 3);
    plain_step(back, *back_model, 3);
    EXPECT_EQ(values_of(*back_model), values_of(*plain_model));
  }
}

TEST_F(ShardedCheckpoints, RemaindersReadACheckpointOfMasters) {
  auto model = std::make_shared<Model>(DType::bf16), again = std::make_shared<Model>(DType::bf16, 2.0);
  DistributedFusedAdam optimizer(model->params, {.lr = 0.01});
  for (int i = 0; i < 3; ++i) step(optimizer, *model, i);
  checkpoint::save(path_, {.model = model, .optimizer = &optimizer, .step = 3});
  DistributedFusedAdamOptions options{.lr = 0.01};
  options.sharding.store_params = false;
  options.sharding.store_param_remainders = true;
  options.sharding.param_sync_dtype = DType::bf16;
  DistributedFusedAdam resumed(again->params, options);
  checkpoint::load(path_, {.model = again, .optimizer = &resumed});
  for (int i = 3; i < 5; ++i) {
    step(optimizer, *model, i);
    step(resumed, *again, i);
  }
  const auto a = optimizer.state_dict(), b = resumed.state_dict();
  for (std::size_t k = 0; k < a.state.size(); ++k)
    EXPECT_EQ(test::to_f64(a.state[k].at("master")), test::to_f64(b.state[k].at("master"))) << k;
}

TEST_F(ShardedCheckpoints, BeforeTheFirstStep) {
  auto model = std::make_shared<Model>(DType::f32), again = std::make_shared<Model>(DType::f32, 2.0);
  DistributedFusedAdam optimizer(model->params, {.lr = 0.01}), resumed(again->params, {.lr = 0.01});
  checkpoint::save(path_, {.model = model, .optimizer = &optimizer});
  step(resumed, *again, 0);
  checkpoint::load(path_, {.model = again, .optimizer = &resumed});
  EXPECT_EQ(values_of(*again), values_of(*model));
  step(optimizer, *model, 0);
  step(resumed, *again, 0);
  EXPECT_EQ(values_of(*again), values_of(*model)) << "as if it had never been stepped";
}

TEST_F(ShardedCheckpoints, LambReadsPlainLamb) {
  auto plain_model = std::make_shared<Model>(DType::f32), model = std::make_shared<Model>(DType::f32, 2.0);
  optimizers::FusedLAMB plain(plain_model->params, {.lr = 0.01});
  test::DistributedFusedLAMB sharded(model->params, {.eps = 1e-6, .weight_decay = 0.01, .max_grad_norm = 1.0});
  for (int i = 0; i < 2; ++i) plain_step(plain, *plain_model, i);
  checkpoint::save(path_, {.model = plain_model, .optimizer = &plain, .step = 2});
  checkpoint::load(path_, {.model = model, .optimizer = &sharded});
  plain_step(plain, *plain_model, 2);
  step(sharded, *model, 2);
  const auto got = values_of(*model), want = values_of(*plain_model);
  for (std::size_t k = 0; k < got.size(); ++k)
    for (std::size_t i = 0; i < got[k].size(); ++i) ASSERT_NEAR(got[k][i], want[k][i], 1e-5) << k << ',' << i;
}

TEST_F(ShardedCheckpoints, WhatDoesNotFitIsRefusedOnAllRanks) {
  auto model = std::make_shared<Model>(DType::f32);
  DistributedFusedAdam optimizer(model->params, {.lr = 0.01});
  step(optimizer, *model, 0);
  const auto before = values_of(*model);
  const auto state = optimizer.state_dict();
  const auto refused = [&](const std::function<void(optimizers::OptimizerState&)>& spoil) {
    auto spoiled = state;
    spoil(spoiled);
    const auto text = test::error_of([&] { optimizer.load_state_dict(spoiled); }, Kind::data);
    EXPECT_EQ(values_of(*model), before);
    return text;
  };
  using State = optimizers::OptimizerState;
  EXPECT_NE(refused([](State& s) { s.type = "FusedSGD"; }).find("FusedSGD"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.groups.emplace_back(); }).find("2 parameter groups"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.groups[0].params.pop_back(); }).find("group 0"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.groups[0].params[1] = 17; }).find("parameter 17"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.state[1].erase("exp_avg"); }).find("no 'exp_avg'"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.state[1].erase("step"); }).find("no step count"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.state[1]["sum"] = zeros({31, 17}); }).find("'sum'"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.state[1]["exp_avg"] = zeros({31, 18}); }).find("[31, 18]"), std::string::npos);
  EXPECT_NE(refused([](State& s) { s.groups[0].hyper["momentum"] = 0.5; }).find("momentum"), std::string::npos);
  optimizer.load_state_dict(state);
  EXPECT_EQ(values_of(*model), before);
}

TEST_F(ShardedCheckpoints, OtherFormatsAreRefused) {  // OPT-10.A44
  auto model = std::make_shared<Model>(DType::f32);
  DistributedFusedAdam optimizer(model->params, {});
  const auto refused = [&](const std::function<void(io::Tree&)>& spoil) {
    io::Tree tree;
    tree.group("")["epoch"] = std::int64_t{0};
    tree.group("model")["arch"] = std::string();
    tree.group("optimizer/0")["type"] = std::string("FusedAdam");
    spoil(tree);
    io::write_checkpoint(world().channel(dist::Purpose::checkpoint).mpi_comm(), path_, 1, tree);
    return test::error_of([&] { checkpoint::load(path_, {.optimizer = &optimizer}); }, Kind::data);
  };
  EXPECT_NE(refused([](io::Tree& t) { t.group("optimizer/0")["format"] = std::int64_t{7}; }).find("format 7"),
            std::string::npos);
  EXPECT_NE(refused([](io::Tree& t) { t.group("optimizer/0")["format"] = std::int64_t{1}; }).find("format 1"),
            std::string::npos);
  EXPECT_NE(refused([](io::Tree& t) { t.group("optimizer/0/buckets"); }).find("format 1"), std::string::npos);
  EXPECT_NE(refused([](io::Tree& t) { t.group("optimizer/0/gathered_states"); }).find("format 1"), std::string::npos);
}

}  // namespace
}  // namespace apex
