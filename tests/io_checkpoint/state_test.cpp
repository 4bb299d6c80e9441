// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex::checkpoint: what is saved is what is loaded, for models, optimizers and sections. Run as 1 to 3 processes.
#include <gtest/gtest.h>

#include "apex/autograd.hpp"
#include "apex/checkpoint.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/layers.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "sample_tree.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;
using optimizers::FusedSGD;

dist::ProcessGroup world() { return dist::ProcessGroup::world(); }

class Net : public nn::Sequential {
 public:
  explicit Net(std::int64_t channels = 6, std::int64_t classes = 5)
      : Sequential(std::make_shared<nn::Conv2d>(
                       nn::Conv2d::Options{.in_channels = 3, .out_channels = channels, .kernel = {3, 3}}),
                   std::make_shared<nn::BatchNorm2d>(channels), std::make_shared<nn::ReLU>(),
                   std::make_shared<nn::AdaptiveAvgPool2d>(std::array<std::int64_t, 2>{1, 1}),
                   std::make_shared<nn::Flatten>(), std::make_shared<nn::Linear>(channels, classes)) {}
};

std::shared_ptr<Net> net(std::uint64_t seed, std::int64_t channels = 6, std::int64_t classes = 5) {
  manual_seed(seed);
  return std::make_shared<Net>(channels, classes);
}

FusedSGD sgd(nn::Module& model, double lr = 0.1) {
  return {model.parameters(), {.lr = lr, .momentum = 0.9, .weight_decay = 1e-3}};
}

/// A step on data that depend on `step` alone; the same on all ranks.
void train_step(nn::Module& model, optimizers::Optimizer& optimizer, std::uint64_t step) {
  Generator generator{1000 + step, 0};
  const Tensor x = empty({4, 3, 6, 6}), labels = from_values<std::int64_t>({4}, {0, 1, 2, 3});
  nn::init::normal(x, 0, 1, generator);
  optimizer.zero_grad();
  backward(nn::functional::cross_entropy(model(x), labels));
  optimizer.step();
}

std::vector<unsigned char> bits(nn::Module& model) {
  std::vector<unsigned char> all;
  for (const auto& entry : model.state_dict()) {
    const auto more = test::logical_bytes(entry.tensor);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::vector<unsigned char> bits(const optimizers::Optimizer& optimizer) {
  std::vector<unsigned char> all;
  optimizer.for_each_state([&](const Tensor&, const std::string&, const Tensor& value) {
    const auto more = test::logical_bytes(value);
    all.insert(all.end(), more.begin(), more.end());
  });
  return all;
}

class State : public ::testing::Test {
 protected:
  State()
      : folder(
            concat("state_", ::testing::UnitTest::GetInstance()->current_test_info()->name(), '_', shared_number())) {
    if (world().rank() == 0) folder.own();
    world().barrier();
  }
  ~State() override { world().barrier(); }
  static std::int64_t shared_number() {
    return world().all_reduce(static_cast<std::int64_t>(getpid()), dist::ReduceOp::min);
  }
  fs::path save(const checkpoint::Contents& contents) { return checkpoint::save(folder.path(), contents).path; }

  test::Folder folder;
};

template <class F>
std::string message_of(Kind kind, F&& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << text

TEST_F(State, TrainingGoesOnAsIfItHadNotStopped) {
  auto model = net(1);
  auto optimizer = sgd(*model);
  for (std::uint64_t step = 0; step < 3; ++step) train_step(*model, optimizer, step);
  default_generator().next();
  const Generator rng = default_generator();
  save({.model = model, .optimizer = &optimizer, .arch = "net", .class_names = {"a", "b"}, .step = 3, .epoch = 1});

  auto again = net(99);
  auto other = sgd(*again, 0.7);
  train_step(*again, other, 50);  // its own momentum is replaced too
  Generator restored;
  const auto loaded =
      checkpoint::load(folder.path(), {.model = again, .optimizer = &other, .rng = &restored, .arch = "net"});
  EXPECT_EQ(loaded.step, 3);
  EXPECT_EQ(loaded.epoch, 1);
  EXPECT_EQ(loaded.world_size, world().size());
  EXPECT_EQ(loaded.arch, "net");
  EXPECT_EQ(loaded.class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(restored, rng);
  EXPECT_EQ(bits(*again), bits(*model));
  EXPECT_EQ(bits(other), bits(optimizer));
  EXPECT_EQ(other.groups()[0].number("lr"), 0.1) << "stored hyper-parameters replace the current ones";

  for (std::uint64_t step = 3; step < 6; ++step) {
    train_step(*model, optimizer, step);
    train_step(*again, other, step);
  }
  EXPECT_EQ(bits(*again), bits(*model));
  EXPECT_EQ(bits(other), bits(optimizer));
  default_generator() = rng;
  const auto a = checkpoint::save(folder.path() / "a", {.model = model, .optimizer = &optimizer, .step = 6}).path;
  const auto b = checkpoint::save(folder.path() / "b", {.model = again, .optimizer = &other, .step = 6}).path;
  EXPECT_TRUE(test::read_bytes(a) == test::read_bytes(b)) << "equal runs give equal files";
}

TEST_F(State, TheFileFollowsTheSchema) {
  auto model = net(1);
  set_requires_grad(model->parameters()[0], false);
  auto optimizer = sgd(*model);
  train_step(*model, optimizer, 0);
  const auto path = save({.model = model,
                          .optimizer = &optimizer,
                          .sampler = {.attributes = {{"index", std::int64_t{9}}}},
                          .step = 12,
                          .epoch = 2});
  const io::CheckpointFile file(path);
  EXPECT_EQ(file.children(""), (std::vector<std::string>{"amp", "config", "ddp", "metrics", "model", "optimizer", "rng",
                                                         "sampler", "scheduler"}));
  EXPECT_EQ(io::attribute<std::int64_t>(file.attributes(""), "epoch", ""), 2);
  EXPECT_EQ(file.children("model"),
            (std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean",
                                      "1.running_var", "1.weight", "5.bias", "5.weight"}));
  const auto& weight = file.datasets().find("model/0.weight")->second;
  EXPECT_EQ(weight.sizes, (Dims{6, 3, 3, 3}));
  EXPECT_EQ(io::attribute<std::string>(weight.attributes, "kind", ""), "parameter");
  EXPECT_FALSE(io::attribute<bool>(weight.attributes, "requires_grad", ""));
  EXPECT_TRUE(io::attribute<bool>(file.datasets().find("model/5.weight")->second.attributes, "requires_grad", ""));
  const auto& count = file.datasets().find("model/1.num_batches_tracked")->second;
  EXPECT_EQ(count.dtype, DType::i64);
  EXPECT_EQ(io::attribute<std::string>(count.attributes, "kind", ""), "buffer");
  EXPECT_EQ(io::attribute<std::string>(file.attributes("optimizer/0"), "type", ""), "FusedSGD");
  const auto& group = file.attributes("optimizer/0/groups/0");
  EXPECT_EQ(io::attribute<double>(group, "momentum", ""), 0.9);
  EXPECT_FALSE(io::attribute<bool>(group, "nesterov", ""));
  EXPECT_EQ(file.read_strings("optimizer/0/groups/0/params"),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias"}));
  EXPECT_FALSE(file.has_dataset("optimizer/0/state/0.weight/momentum_buffer")) << "it had no gradient";
  EXPECT_EQ(file.datasets().find("optimizer/0/state/5.weight/momentum_buffer")->second.sizes, (Dims{5, 6}));
}

TEST_F(State, LayoutsAndTypesOfTheTargetStay) {
  auto model = net(1);
  model->to(kCpu, MemoryFormat::channels_last);
  save({.model = model, .step = 1});
  auto plain = net(2);
  checkpoint::load(folder.path(), {.model = plain});
  EXPECT_EQ(bits(*plain), bits(*model));
  EXPECT_TRUE(plain->parameters()[0].is_contiguous());
  auto wide = net(3);
  wide->to(DType::f64);
  checkpoint::load(folder.path(), {.model = wide});
  ASSERT_EQ(wide->parameters()[0].dtype(), DType::f64);
  EXPECT_EQ(wide->parameters()[0].data<double>()[5], static_cast<double>(plain->parameters()[0].data<float>()[5]));
  auto last = net(4);
  last->to(kCpu, MemoryFormat::channels_last);
  const Tensor weight = last->parameters()[0];
  checkpoint::load(folder.path(), {.model = last});
  EXPECT_EQ(bits(*last), bits(*model));
  EXPECT_TRUE(weight.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(weight.is_same(last->parameters()[0])) << "the identity stays";
}

TEST_F(State, AnotherArchitectureIsRefusedByName) {
  save({.model = net(1), .arch = "net6", .step = 1});
  const auto refused = [&](const std::shared_ptr<nn::Module>& model, const std::string& arch) {
    const auto before = bits(*model);
    const auto text = message_of(Kind::data, [&] { checkpoint::load(folder.path(), {.model = model, .arch = arch}); });
    EXPECT_EQ(bits(*model), before) << "nothing changed";
    EXPECT_SAYS(text, "step_00000001.h5");
    EXPECT_SAYS(text, "net6");
    return text;
  };
  const auto sizes = refused(net(2, 6, 7), "net7");
  EXPECT_SAYS(sizes, "net7");
  EXPECT_SAYS(sizes, "'5.weight' is [5, 6], the model's is [7, 6]");
  auto longer = net(2);
  longer->push_back(std::make_shared<nn::Linear>(5, 2));
  EXPECT_SAYS(refused(longer, "longer"), "'6.weight' is missing (and 1 more)");
  auto shorter = std::make_shared<nn::Sequential>(
      std::make_shared<nn::Conv2d>(nn::Conv2d::Options{.in_channels = 3, .out_channels = 6, .kernel = {3, 3}}));
  EXPECT_SAYS(refused(shorter, "shorter"), "'1.bias' is unexpected (and 6 more)");
  EXPECT_SAYS(refused(net(2), "other"), "does not fit other");
}

TEST_F(State, AnOptimizerThatDoesNotFitIsRefusedAndNothingChanges) {
  auto model = net(1);
  auto optimizer = sgd(*model);
  train_step(*model, optimizer, 0);
  save({.model = model, .optimizer = &optimizer, .step = 1});
  auto target = net(2);
  const auto before = bits(*target);
  const auto refused = [&](FusedSGD& o) {
    const auto text =
        message_of(Kind::data, [&] { checkpoint::load(folder.path(), {.model = target, .optimizer = &o}); });
    EXPECT_EQ(bits(*target), before) << "the model did not change either";
    EXPECT_SAYS(text, "/optimizer/0");
    return text;
  };
  const auto params = target->parameters();
  FusedSGD two({{.params = {params[0]}}, {.params = {params[1]}}}, {.lr = 0.1, .momentum = 0.9});
  EXPECT_SAYS(refused(two), "1 parameter groups, but this optimizer has 2");
  FusedSGD fewer({params[0], params[1]}, {.lr = 0.1});
  EXPECT_SAYS(refused(fewer), "group 0 has 6 parameters, but 2 in this optimizer");
  auto changed = params;
  changed[2] = zeros({6});
  set_requires_grad(changed[2]);
  FusedSGD foreign(changed, {.lr = 0.1, .momentum = 0.9});
  EXPECT_SAYS(refused(foreign), "parameter '1.weight'");
  auto none = sgd(*target);
  const auto text = message_of(Kind::data, [&] { checkpoint::load(folder.path(), {.optimizers = {&none, &none}}); });
  EXPECT_SAYS(text, "has parameter '0.weight'") << "without the model its parameters have no names";
}

TEST_F(State, OrderOfParametersDoesNotMatterButNamesDo) {
  auto model = net(1);
  auto params = model->parameters();
  FusedSGD forward({{.params = {params[0], params[1], params[2]}, .hyper = {{"weight_decay", 0.5}}},
                    {.params = {params[3], params[4], params[5]}}},
                   {.lr = 0.1, .momentum = 0.9});
  train_step(*model, forward, 0);
  save({.model = model, .optimizer = &forward, .step = 1});
  auto again = net(2);
  params = again->parameters();
  FusedSGD backward({{.params = {params[2], params[0], params[1]}}, {.params = {params[5], params[4], params[3]}}},
                    {.lr = 0.3, .momentum = 0.1});
  checkpoint::load(folder.path(), {.model = again, .optimizer = &backward});
  for (std::size_t i = 0; i < params.size(); ++i)
    EXPECT_EQ(test::logical_bytes(backward.state_of(params[i]).at("momentum_buffer")),
              test::logical_bytes(forward.state_of(model->parameters()[i]).at("momentum_buffer")))
        << i;
  EXPECT_EQ(backward.groups()[0].number("weight_decay"), 0.5);
  EXPECT_EQ(backward.groups()[1].number("weight_decay"), 0.0);
}

TEST_F(State, SeveralModelsAndOptimizersAndParametersOfNoModel) {
  auto g = net(1), d = net(2, 4, 2);
  Tensor free = zeros({3});
  set_requires_grad(free);
  auto params = d->parameters();
  params.push_back(free);
  auto first = sgd(*g);
  FusedSGD second(params, {.lr = 0.2, .momentum = 0.5});
  train_step(*g, first, 0);
  set_grad(free, ones({3}));
  second.step();
  const auto path = save({.models = {{"generator", g}, {"critic", d}}, .optimizers = {&first, &second}, .step = 1});
  {
    const io::CheckpointFile file(path);
    EXPECT_TRUE(file.has_dataset("model/generator.0.weight"));
    EXPECT_TRUE(file.has_dataset("model/critic.5.bias"));
    EXPECT_EQ(file.read_strings("optimizer/1/groups/0/params").back(), "param_0_6");
    EXPECT_TRUE(file.has_dataset("optimizer/1/state/param_0_6/momentum_buffer"));
  }
  auto g2 = net(3), d2 = net(4, 4, 2);
  Tensor free2 = zeros({3});
  set_requires_grad(free2);
  auto params2 = d2->parameters();
  params2.push_back(free2);
  auto first2 = sgd(*g2);
  FusedSGD second2(params2, {.lr = 0.2, .momentum = 0.5});
  checkpoint::load(folder.path(), {.models = {{"generator", g2}, {"critic", d2}}, .optimizers = {&first2, &second2}});
  EXPECT_EQ(bits(*g2), bits(*g));
  EXPECT_EQ(bits(*d2), bits(*d));
  EXPECT_EQ(bits(first2), bits(first));
  EXPECT_EQ(bits(second2), bits(second));
  // Bad combinations.
  const auto bad = [&](const checkpoint::Contents& contents, const char* part) {
    EXPECT_SAYS(message_of(Kind::argument, [&] { save(contents); }), part);
  };
  bad({.model = g, .models = {{"a", d}}}, "either model or models");
  bad({.models = {{"a", g}, {"a", d}}}, "two models are called 'a'");
  bad({.models = {{"a.b", g}}}, "cannot label");
  bad({.models = {{"a", nullptr}}}, "is null");
  bad({.optimizer = &first, .optimizers = {&second}}, "either optimizer or optimizers");
}

TEST_F(State, SectionsAndManyClassNamesComeBack) {
  std::vector<std::string> classes;
  for (int i = 0; i < 21841; ++i) classes.push_back("class " + std::to_string(i));
  const checkpoint::Section sampler{
      .attributes = {{"index", std::int64_t{7}}, {"rate", 0.5}, {"name", std::string("x")}},
      .groups = {{"inner", {{"on", true}}}},
      .tensors = {{"plan", test::filled({9}, DType::i32, 1)}},
      .strings = {{"names", {"a", "b"}}}};
  save({.sampler = sampler,
        .metrics = {.attributes = {{"seconds", 1.5 + world().rank()}}},
        .class_names = classes,
        .step = 1});
  const auto loaded = checkpoint::load(folder.path(), {});
  EXPECT_EQ(loaded.sampler.attributes, sampler.attributes);
  EXPECT_EQ(loaded.sampler.groups, sampler.groups);
  EXPECT_EQ(loaded.sampler.strings, sampler.strings);
  ASSERT_EQ(loaded.sampler.tensors.size(), 1u);
  EXPECT_EQ(test::logical_bytes(loaded.sampler.tensors.at("plan")), test::logical_bytes(sampler.tensors.at("plan")));
  EXPECT_EQ(loaded.class_names, classes);
  EXPECT_EQ(io::attribute<double>(loaded.metrics.attributes, "seconds", ""), 1.5) << "rank 0's";
  EXPECT_TRUE(loaded.scheduler.attributes.empty());
}

TEST_F(State, ADamagedOrMissingFileIsAnErrorOnEveryRank) {
  auto model = net(1);
  auto optimizer = sgd(*model);
  train_step(*model, optimizer, 0);
  message_of(Kind::data, [&] { checkpoint::load(folder.path() / "none", {.model = model}); });
  const auto path = save({.model = model, .optimizer = &optimizer, .step = 1});
  world().barrier();
  if (world().rank() == 0) {
    auto bytes = test::read_bytes(path);
    bytes[bytes.size() - 600] ^= 1;
    test::write_bytes(path, bytes);
  }
  world().barrier();
  auto target = net(2);
  const auto before = bits(*target);
  auto other = sgd(*target);
  EXPECT_SAYS(message_of(Kind::damaged, [&] { checkpoint::load(path, {.model = target, .optimizer = &other}); }),
              "optimizer/0/state");
  EXPECT_EQ(bits(*target), before);
  message_of(Kind::damaged, [&] { checkpoint::load(folder.path(), {.model = target}); });
  // With an older good one beside it, the directory still serves.
  checkpoint::save(folder.path(), {.model = model, .step = 0});
  EXPECT_EQ(checkpoint::load(folder.path(), {.model = target}).step, 0);
  EXPECT_EQ(bits(*target), bits(*model));
}

// FAULT 29 of the fault matrix: files do not know how many ranks wrote them.
TEST_F(State, AnyGroupLoadsWhatAnyOtherSaved) {
  auto model = net(1);
  auto optimizer = sgd(*model);
  train_step(*model, optimizer, 0);
  for (int writers = 1; writers <= world().size(); ++writers) {
    const auto group = world().split(world().rank() < writers ? 0 : -1);
    if (group)
      checkpoint::save(folder.path(), {.model = model, .optimizer = &optimizer, .step = writers}, {.group = group});
    world().barrier();
    auto again = net(9);
    auto other = sgd(*again);
    EXPECT_EQ(checkpoint::load(folder.path(), {.model = again, .optimizer = &other}).world_size, writers);
    EXPECT_EQ(bits(*again), bits(*model));
    EXPECT_EQ(bits(other), bits(optimizer));
  }
}

TEST_F(State, AModelAloneIsLoadedWithoutTheRest) {
  auto model = net(1);
  auto optimizer = sgd(*model);
  train_step(*model, optimizer, 0);
  const auto path = save({.model = model, .optimizer = &optimizer, .arch = "net6", .step = 1});
  auto target = net(2);
  const auto report = checkpoint::load_model(path, *target, {.arch = "net6"});
  EXPECT_EQ(bits(*target), bits(*model));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  auto longer = net(3);
  longer->push_back(std::make_shared<nn::Linear>(5, 2));
  EXPECT_SAYS(message_of(Kind::data, [&] { checkpoint::load_model(path, *longer); }), "'6.weight' is missing");
  const auto loose = checkpoint::load_model(path, *longer, {.arch = "longer", .strict = false});
  EXPECT_EQ(loose.missing, (std::vector<std::string>{"6.weight", "6.bias"}));
  auto other = net(3, 6, 8);
  EXPECT_SAYS(message_of(Kind::data, [&] { checkpoint::load_model(path, *other, {.strict = false}); }), "[8, 6]");
}

TEST_F(State, ResNetSharesTheBytesEvenly) {
  auto model = models::resnet20({.num_classes = 10, .in_channels = 1});
  FusedSGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
  for (const auto& p : model->parameters()) set_grad(p, ones_like(p));
  optimizer.step();
  const auto result =
      checkpoint::save(folder.path(), {.model = model, .optimizer = &optimizer, .arch = "resnet20", .step = 1});
  std::int64_t total = 0;
  for (const auto bytes : result.bytes_per_rank) total += bytes;
  for (const auto bytes : result.bytes_per_rank)
    EXPECT_GE(static_cast<double>(bytes), 0.8 * static_cast<double>(total) / world().size());
  const io::CheckpointFile file(result.path);
  std::size_t buffers = 0;
  for (const auto& [name, info] : file.datasets()) buffers += name.ends_with("/momentum_buffer");
  EXPECT_EQ(buffers, model->parameters().size()) << "a momentum buffer for each parameter";
  auto again = models::create("resnet20", {.num_classes = 10, .in_channels = 1});
  FusedSGD other(again->parameters(), {.lr = 0.1, .momentum = 0.9});
  checkpoint::load(result.path, {.model = again, .optimizer = &other, .arch = "resnet20"});
  EXPECT_EQ(bits(*again), bits(*model));
  EXPECT_EQ(bits(other), bits(optimizer));
}

}  // namespace
}  // namespace apex
