// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/fp16_utils.hpp"
#include "apex/nn/layers.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

using namespace nn;
using test::expect_error;
using test::expect_values;
using test::values;
using test::wave;

class Pair : public Module {
 public:
  Pair() {
    first = std::make_shared<Linear>(3, 2);
    bn = std::make_shared<BatchNorm1d>(2);
    register_module("first", first);
    register_module("bn", bn);
    scale = register_parameter("scale", test::ones({1}));
    register_buffer("seen", test::zeros({}, DType::i64));
    to(test::device());
  }
  Tensor forward(const Tensor& x) override { return mul(bn->forward(first->forward(x)), scale); }
  std::string_view kind() const override { return "Pair"; }
  void misuse(const std::string& name) { register_parameter(name, test::ones({1})); }

  std::shared_ptr<Module> first;
  std::shared_ptr<BatchNorm1d> bn;
  Tensor scale;
};

std::vector<std::string> names(const std::vector<NamedTensor>& list) {
  std::vector<std::string> out;
  for (const auto& entry : list) out.push_back(entry.name);
  return out;
}

TEST(Module, ListingsFollowRegistration) {
  Pair m;
  EXPECT_EQ(names(m.named_parameters()),
            (std::vector<std::string>{"scale", "first.weight", "first.bias", "bn.weight", "bn.bias"}));
  EXPECT_EQ(names(m.named_buffers()),
            (std::vector<std::string>{"seen", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}));
  std::vector<std::string> state;
  for (const auto& e : m.state_dict()) state.push_back(e.name);
  EXPECT_EQ(state, (std::vector<std::string>{"scale", "seen", "first.weight", "first.bias", "bn.weight", "bn.bias",
                                             "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}));
  EXPECT_EQ(m.state_dict()[1].kind, StateKind::buffer);
  EXPECT_EQ(m.parameters().size(), 5u);
  EXPECT_EQ(m.buffers().size(), 4u);
  std::vector<std::string> paths, kinds;
  for (const auto& [path, module] : m.named_modules()) paths.push_back(path);
  m.apply([&](Module& module) { kinds.emplace_back(module.kind()); });
  EXPECT_EQ(paths, (std::vector<std::string>{"", "first", "bn"}));
  EXPECT_EQ(kinds, (std::vector<std::string>{"Linear", "BatchNorm1d", "Pair"}));
  for (const auto& p : m.parameters()) EXPECT_TRUE(requires_grad(p));
}

TEST(Module, SharedPartsAreListedOnce) {
  const auto shared = std::make_shared<Linear>(2, 2);
  Sequential s(shared, std::make_shared<ReLU>(), shared);
  EXPECT_EQ(s.parameters().size(), 2u);
  EXPECT_EQ(s.named_modules().size(), 3u);
  EXPECT_EQ(s.size(), 3u);
}

TEST(Module, NamesAreChecked) {
  Pair m;
  expect_error(Kind::argument, "already used", [&] { m.misuse("first"); });
  expect_error(Kind::argument, "already used", [&] { m.misuse("seen"); });
  expect_error(Kind::argument, "'a.b'", [&] { m.misuse("a.b"); });
  expect_error(Kind::argument, "''", [&] { m.misuse(""); });
  Sequential s;
  expect_error(Kind::argument, "null", [&] { s.push_back(nullptr); });
  Module plain;
  expect_error(Kind::unsupported, "Module has no forward", [&] { plain(test::ones({1})); });
}

TEST(Module, ReplaceChildMovesTheParentsPointer) {
  Pair m;
  const auto fresh = std::make_shared<Linear>(3, 2, false);
  m.replace_child("first", fresh);
  EXPECT_EQ(m.first, fresh);
  EXPECT_EQ(names(m.named_parameters())[1], "first.weight");
  EXPECT_EQ(m.parameters().size(), 4u);
  expect_error(Kind::argument, "another class", [&] { m.replace_child("bn", fresh); });
  expect_error(Kind::argument, "no child 'third'", [&] { m.replace_child("third", fresh); });
  expect_error(Kind::argument, "replaced by nothing", [&] { m.replace_child("first", nullptr); });
}

TEST(Module, StateDictRoundTrip) {
  manual_seed(1);
  Pair a;
  a(wave({4, 3}, 0, 1, 0, DType::f32));
  manual_seed(2);
  Pair b;
  const auto identity = b.parameters();
  const auto version = b.scale.version();
  EXPECT_NE(values(a.first->parameters()[0]), values(b.first->parameters()[0]));
  const auto report = b.load_state_dict(a.state_dict());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  const auto from = a.state_dict(), to = b.state_dict();
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(values(from[i].tensor), values(to[i].tensor)) << from[i].name;
    EXPECT_NE(from[i].tensor.storage(), to[i].tensor.storage());
  }
  for (std::size_t i = 0; i < identity.size(); ++i) EXPECT_TRUE(identity[i].is_same(b.parameters()[i]));
  EXPECT_GT(b.scale.version(), version);
  EXPECT_EQ(values(b.bn->num_batches_tracked()), (std::vector<double>{1}));
}

TEST(Module, LoadStateDictConvertsAndRefuses) {
  Pair m;
  const auto before = values(m.scale);
  StateDict state = m.state_dict();
  state[0].tensor = test::vector_of({0.5}, DType::f64);
  m.load_state_dict(state);
  EXPECT_EQ(m.scale.dtype(), DType::f32);
  expect_values(m.scale, {0.5}, 0);

  StateDict other = m.state_dict();
  other.erase(other.begin() + 2);
  other.push_back({"extra", test::ones({1}), StateKind::parameter});
  other[0].tensor = test::full({1}, 9.0);
  expect_error(Kind::data, "missing first.weight", [&] { m.load_state_dict(other); });
  expect_error(Kind::data, "unexpected extra", [&] { m.load_state_dict(other); });
  expect_values(m.scale, {0.5}, 0);  // nothing was written
  const auto report = m.load_state_dict(other, {.strict = false});
  EXPECT_EQ(report.missing, (std::vector<std::string>{"first.weight"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"extra"}));
  expect_values(m.scale, {9}, 0);
  other[0].tensor = test::ones({2});
  expect_error(Kind::data, "'scale' is [2], the model has [1]", [&] { m.load_state_dict(other, {.strict = false}); });
}

TEST(Module, ToKeepsIdentityAndConvertsGradients) {
  Sequential m(std::make_shared<Conv2d>(Conv2d::Options{.in_channels = 3, .out_channels = 2, .kernel = {3, 3}}),
               std::make_shared<BatchNorm2d>(2));
  m.to(test::device());
  const auto before = m.parameters();
  const auto weight = values(before[0]);
  set_grad(before[0], wave({2, 3, 3, 3}, 1, 1, 0, DType::f32));
  m.to(MemoryFormat::channels_last);
  m.to(DType::f64);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(before[i].is_same(m.parameters()[i]));
    EXPECT_EQ(before[i].dtype(), DType::f64);
    EXPECT_TRUE(requires_grad(before[i]));
  }
  EXPECT_EQ(values(before[0]), weight);
  EXPECT_EQ(before[0].memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ(grad(before[0]).dtype(), DType::f64);
  EXPECT_EQ(grad(before[0]).strides(), before[0].strides());
  EXPECT_EQ(m.buffers()[0].dtype(), DType::f64);
  EXPECT_EQ(m.buffers()[2].dtype(), DType::i64);  // whole numbers stay
  m.to(test::device(), DType::f32, MemoryFormat::contiguous);
  EXPECT_TRUE(before[0].is_contiguous());
  EXPECT_EQ(values(before[0]), weight);
  expect_error(Kind::argument, "i64", [&] { m.to(DType::i64); });
  if (!has_cuda) expect_error(Kind::unsupported, "cuda:0", [&] { m.to(Device{DeviceKind::cuda, 0}); });
}

TEST(Module, MovesAllOfItselfAndBack) {
  Pair m;
  m(wave({4, 3}, 0, 1, 0, DType::f32));
  const auto before = m.state_dict();
  std::vector<std::vector<double>> kept;
  for (const auto& e : before) kept.push_back(values(e.tensor));
  set_grad(m.scale, test::full({1}, 3.0));
  for (const Device device : {kCpu, test::device()}) {
    m.to(device);
    const auto now = m.state_dict();
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(now[i].tensor.is_same(before[i].tensor));
      EXPECT_EQ(now[i].tensor.device(), device) << now[i].name;
      EXPECT_EQ(values(now[i].tensor), kept[i]) << now[i].name;
    }
    EXPECT_EQ(grad(m.scale).device(), device);
    expect_values(grad(m.scale), {3}, 0);
  }
}

TEST(Fp16Utils, ConvertNetworkKeepsBatchNorms) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const auto shared = std::make_shared<Linear>(3, 3);
    Sequential m(shared, std::make_shared<BatchNorm1d>(3),
                 std::make_shared<BatchNorm1d>(3, BatchNorm1d::Options{.affine = false}), shared,
                 std::make_shared<Pair>());
    m.to(test::device());
    const auto before = m.parameters();
    set_grad(before[0], test::ones({3, 3}));
    fp16_utils::convert_network(m, half);
    const auto now = m.parameters();
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].is_same(before[i])) << i;
    EXPECT_EQ(grad(before[0]).dtype(), half);
    for (const auto& e : m.state_dict()) {
      const bool whole = e.name.ends_with("num_batches_tracked") || e.name.ends_with("seen");
      const bool norm = e.name.starts_with("1.") || e.name.starts_with("4.bn.");
      EXPECT_EQ(e.tensor.dtype(), whole ? DType::i64 : norm ? DType::f32 : half) << e.name;
      EXPECT_TRUE(e.kind == StateKind::buffer || requires_grad(e.tensor)) << e.name;
    }
    EXPECT_EQ(m(wave({4, 3}, 0, 1, 0, half)).dtype(), half);  // a batch norm takes any mix
  }
  Linear plain(2, 2);
  expect_error(Kind::argument, "i64", [&] { fp16_utils::convert_network(plain, DType::i64); });
  fp16_utils::convert_module(plain, DType::bf16);
  EXPECT_EQ(plain.weight().dtype(), DType::bf16);
  BatchNorm2d norm(2);
  fp16_utils::convert_module(norm, DType::bf16);
  EXPECT_EQ(norm.weight().dtype(), DType::bf16);
  EXPECT_EQ(norm.num_batches_tracked().dtype(), DType::i64);
}

TEST(Module, ZeroGradAndTrainEval) {
  Pair m;
  EXPECT_TRUE(m.is_training());
  m.eval();
  EXPECT_FALSE(m.bn->is_training());
  m.train();
  EXPECT_TRUE(m.bn->is_training());
  set_grad(m.scale, test::full({1}, 3.0));
  const Tensor g = grad(m.scale);
  m.zero_grad(false);
  EXPECT_TRUE(grad(m.scale).is_same(g));
  expect_values(g, {0}, 0);
  m.zero_grad();
  EXPECT_FALSE(grad(m.scale).defined());
  m.set_requires_grad(false);
  EXPECT_FALSE(requires_grad(m(wave({4, 3}, 0, 1, 0, DType::f32))));
}

TEST(Layers, ConvAndLinearInitialisation) {
  manual_seed(5);
  Conv2d conv({.in_channels = 8, .out_channels = 16, .kernel = {3, 3}});
  Linear linear(100, 40);
  const auto check = [](const Tensor& t, double bound) {
    double largest = 0, mean = 0;
    const auto v = values(t);
    for (const double x : v) {
      largest = std::max(largest, std::abs(x));
      mean += x / static_cast<double>(v.size());
    }
    EXPECT_LE(largest, bound);
    EXPECT_GT(largest, 0.8 * bound);
    EXPECT_NEAR(mean, 0, 0.2 * bound);
  };
  check(conv.weight(), 1 / std::sqrt(72.0));
  check(conv.bias(), 1 / std::sqrt(72.0));
  check(linear.weight(), 0.1);
  manual_seed(5);
  Conv2d again({.in_channels = 8, .out_channels = 16, .kernel = {3, 3}});
  EXPECT_EQ(values(conv.weight()), values(again.weight()));
  Generator own{5, 0};
  Conv2d third({.in_channels = 8, .out_channels = 16, .kernel = {3, 3}}, own);
  EXPECT_EQ(values(conv.weight()), values(third.weight()));
  EXPECT_EQ(own.offset, 2u);
  EXPECT_FALSE(Conv2d({.in_channels = 1, .out_channels = 1, .bias = false}).bias().defined());
  // The fan of a transposed layer is that of its second dimension, as PyTorch counts it.
  ConvTranspose2d up({.in_channels = 64, .out_channels = 16, .kernel = {4, 4}, .groups = 2});
  EXPECT_EQ(up.weight().sizes(), (Dims{64, 8, 4, 4}));
  EXPECT_EQ(up.bias().sizes(), Dims{16});
  check(up.weight(), 1 / std::sqrt(128.0));
  EXPECT_FALSE(ConvTranspose2d({.in_channels = 1, .out_channels = 1, .bias = false}).bias().defined());
  Conv1d line({.in_channels = 40, .out_channels = 20, .kernel = 5, .groups = 2});
  EXPECT_EQ(line.weight().sizes(), (Dims{20, 20, 5}));
  check(line.weight(), 0.1);
  ConvTranspose1d longer({.in_channels = 40, .out_channels = 40, .kernel = 5, .groups = 2});
  EXPECT_EQ(longer.weight().sizes(), (Dims{40, 20, 5}));
  EXPECT_EQ(longer.bias().sizes(), Dims{40});
  check(longer.weight(), 0.1);
  EXPECT_FALSE(ConvTranspose1d({.in_channels = 1, .out_channels = 1, .bias = false}).bias().defined());

  const Tensor w = test::empty({64, 32, 3, 3});
  init::kaiming_normal_fan_out(w);
  double square = 0;
  for (const double x : values(w)) square += x * x / static_cast<double>(w.numel());
  EXPECT_NEAR(std::sqrt(square), std::sqrt(2.0 / (64 * 9)), 0.02 * std::sqrt(2.0 / (64 * 9)));
  init::kaiming_uniform(w, 0.0);
  for (const double x : values(w)) EXPECT_LE(std::abs(x), std::sqrt(6.0 / (32 * 9)) * (1 + 1e-6));
  expect_error(Kind::argument, "no fan", [] { init::fans(test::empty({3})); });
}

TEST(Layers, BadOptions) {
  const auto conv = [](Conv2d::Options o) { return [o] { Conv2d layer(o); }; };
  expect_error(Kind::argument, "0 to 1 channels", conv({.in_channels = 0, .out_channels = 1}));
  expect_error(Kind::argument, "2 groups do not divide 3", conv({.in_channels = 3, .out_channels = 2, .groups = 2}));
  expect_error(Kind::argument, "stride 0", conv({.in_channels = 1, .out_channels = 1, .stride = {0, 1}}));
  expect_error(Kind::argument, "padding -1", conv({.in_channels = 1, .out_channels = 1, .padding = {-1, 0}}));
  expect_error(Kind::argument, "kernel of 0", conv({.in_channels = 1, .out_channels = 1, .kernel = {0, 1}}));
  const auto up = [](ConvTranspose2d::Options o) { return [o] { ConvTranspose2d layer(o); }; };
  expect_error(Kind::argument, "ConvTranspose2d: 0 to 1", up({.in_channels = 0, .out_channels = 1}));
  expect_error(Kind::argument, "output_padding 2",
               up({.in_channels = 1, .out_channels = 1, .stride = {2, 2}, .output_padding = {0, 2}}));
  expect_error(Kind::argument, "ConvTranspose1d: output_padding 2",
               [] { ConvTranspose1d layer({.in_channels = 1, .out_channels = 1, .stride = 2, .output_padding = 2}); });
  expect_error(Kind::argument, "ConvTranspose1d: 2 groups do not divide 3",
               [] { ConvTranspose1d layer({.in_channels = 3, .out_channels = 2, .groups = 2}); });
  expect_error(Kind::argument, "Conv1d: stride 0",
               [] { Conv1d layer({.in_channels = 1, .out_channels = 1, .stride = 0}); });
  expect_error(Kind::argument, "features", [] { Linear layer(0, 3); });
  expect_error(Kind::argument, "0 features", [] { BatchNorm2d layer(0); });
  expect_error(Kind::argument, "eps 0", [] { BatchNorm2d layer(2, {.eps = 0}); });
  expect_error(Kind::argument, "momentum 2", [] { BatchNorm2d layer(2, {.momentum = 2.0}); });
  expect_error(Kind::argument, "p = -1", [] { Dropout layer(-1); });
}

/// Mean and unbiased variance of a [N, 1] tensor.
std::pair<double, double> moments(const Tensor& x) {
  const auto v = values(x);
  double mean = 0, var = 0;
  for (const double e : v) mean += e / static_cast<double>(v.size());
  for (const double e : v) var += (e - mean) * (e - mean) / static_cast<double>(v.size() - 1);
  return {mean, var};
}

TEST(BatchNorm, RunningStatistics) {
  BatchNorm1d bn(1, {.momentum = 0.25});
  bn.to(test::device(), DType::f64, MemoryFormat::contiguous);
  const Tensor x = wave({7, 1}, 0, 2.0, 1.0);
  bn.forward(x);
  const auto [mean, var] = moments(x);
  expect_values(bn.running_mean(), {0.25 * mean}, 1e-14);
  expect_values(bn.running_var(), {0.75 + 0.25 * var}, 1e-14);
  expect_values(bn.num_batches_tracked(), {1}, 0);
  bn.eval();
  const Tensor y = bn.forward(x);
  expect_values(bn.num_batches_tracked(), {1}, 0);
  expect_values(
      y,
      [&] {
        std::vector<double> want;
        for (const double e : values(x)) want.push_back((e - 0.25 * mean) / std::sqrt(0.75 + 0.25 * var + 1e-5));
        return want;
      }(),
      1e-13);
}

TEST(BatchNorm, WithoutMomentumItAverages) {
  BatchNorm1d bn(1, {.momentum = std::nullopt});
  bn.to(test::device(), DType::f64, MemoryFormat::contiguous);
  double mean = 0, var = 0;
  for (int k = 0; k < 3; ++k) {
    const Tensor x = wave({5, 1}, k, 1.0 + k, k);
    bn.forward(x);
    mean += moments(x).first / 3;
    var += moments(x).second / 3;
  }
  expect_values(bn.running_mean(), {mean}, 1e-14);
  expect_values(bn.running_var(), {var}, 1e-14);
  expect_values(bn.num_batches_tracked(), {3}, 0);
  bn.set_momentum(0.5);
  EXPECT_EQ(bn.options().momentum, 0.5);
}

TEST(BatchNorm, AnEmptyBatchLeavesTheAverageAlone) {
  BatchNorm1d bn(2, {.momentum = std::nullopt});
  bn.to(test::device(), DType::f64, MemoryFormat::contiguous);
  const Tensor x = wave({5, 2});
  bn.forward(test::empty({0, 2}, DType::f64));
  bn.forward(x);
  const auto mean = values(bn.running_mean());
  bn.forward(test::empty({0, 2}, DType::f64));
  expect_values(bn.num_batches_tracked(), {1}, 0);
  bn.forward(x);
  expect_values(bn.running_mean(), mean, 1e-15);
  expect_values(bn.num_batches_tracked(), {2}, 0);
}

TEST(BatchNorm, FrozenUsesRunningStatisticsInTraining) {
  BatchNorm2d bn(2);
  bn.to(test::device());
  bn.set_frozen(true);
  bn.train();
  const Tensor x = wave({3, 2, 2, 2}, 0, 1, 4, DType::f32);
  const Tensor y = bn.forward(x);
  expect_values(bn.num_batches_tracked(), {0}, 0);
  expect_values(bn.running_mean(), {0, 0}, 0);
  const auto in = values(x), out = values(y);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_NEAR(out[i], in[i] / std::sqrt(1 + 1e-5), 1e-5);
  backward(sum(y));
  EXPECT_TRUE(grad(bn.weight()).defined());
}

TEST(BatchNorm, AFailedCallDoesNotCount) {
  BatchNorm1d bn(2);
  bn.to(test::device());
  expect_error(Kind::argument, "batch_norm", [&] { bn.forward(test::ones({1, 2})); });
  expect_values(bn.num_batches_tracked(), {0}, 0);
}

TEST(BatchNorm, WithoutTrackingOrAffine) {
  BatchNorm1d bn(2, {.affine = false, .track_running_stats = false});
  EXPECT_TRUE(bn.parameters().empty());
  EXPECT_TRUE(bn.buffers().empty());
  bn.eval();
  const auto y = values(bn.forward(wave({4, 2}, 0, 1, 9, DType::f32)));
  EXPECT_NEAR(y[0] + y[2] + y[4] + y[6], 0, 1e-5);  // the batch's own mean, in evaluation too
}

TEST(BatchNorm, EachTakesItsRanks) {
  const Dims shapes[] = {{4, 2}, {4, 2, 3}, {4, 2, 3, 2}, {4, 2, 3, 2, 2}};
  const auto runs = [&](BatchNorm& bn, int least, int most) {
    bn.to(test::device());
    for (const Dims& sizes : shapes) {
      const Tensor x = wave(sizes, 0, 1, 0, DType::f32), residual = wave(sizes, 1, 1, 0, DType::f32);
      if (sizes.size() < least || sizes.size() > most) {
        expect_error(Kind::argument, std::string(bn.kind()), [&] { bn.forward(x); });
        continue;
      }
      const auto plain = values(relu(add(bn.forward(x), residual))), fused = values(bn.forward_add_relu(x, residual));
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(fused[i], plain[i], 1e-6);
      EXPECT_EQ(values(bn.forward_relu(x)), values(relu(bn.forward(x))));
    }
    expect_error(Kind::argument, "undefined", [&] { bn.forward({}); });
  };
  BatchNorm any(2);
  BatchNorm1d one(2);
  BatchNorm2d two(2);
  BatchNorm3d three(2);
  runs(any, 2, 5);
  runs(one, 2, 3);
  runs(two, 4, 4);
  runs(three, 5, 5);
  EXPECT_EQ(names(three.named_parameters()), (std::vector<std::string>{"weight", "bias"}));
  expect_error(Kind::argument, "BatchNorm3d: 0 features", [] { BatchNorm3d layer(0); });
}

/// Every combination of parameters, buffers, momentum and mode, two steps and an evaluation, against the formula in
/// double.
TEST(BatchNorm, EveryMode) {
  for (int bits = 0; bits < 32; ++bits) {
    const bool affine = bits & 1, tracks = bits & 2, averages = bits & 4, frozen = bits & 8, evaluates = bits & 16;
    SCOPED_TRACE(
        concat("affine ", affine, " tracks ", tracks, " averages ", averages, " frozen ", frozen, " eval ", evaluates));
    BatchNorm2d bn(3, {.eps = 1e-3,
                       .momentum = averages ? std::nullopt : std::optional(0.25),
                       .affine = affine,
                       .track_running_stats = tracks});
    bn.to(test::device(), DType::f64, MemoryFormat::contiguous);
    if (affine) {
      for (std::int64_t c = 0; c < 3; ++c) {
        test::set_element(bn.weight(), c, 0.5 + static_cast<double>(c));
        test::set_element(bn.bias(), c, 1.0 - static_cast<double>(c));
      }
    }
    bn.set_frozen(frozen);
    if (evaluates) bn.eval();
    std::vector<double> running_mean(3, 0.0), running_var(3, 1.0);
    const bool own = !tracks || (!frozen && !evaluates);
    for (int step = 0; step < 2; ++step) {
      const Tensor x = wave({2, 3, 2, 4}, step, 1.0 + step, 0.5 * step);
      const auto got = values(bn.forward(x)), in = values(x);
      for (std::size_t c = 0; c < 3; ++c) {
        std::vector<std::size_t> at;
        for (std::size_t n = 0; n < 2; ++n)
          for (std::size_t p = 0; p < 8; ++p) at.push_back((n * 3 + c) * 8 + p);
        double mean = 0, var = 0;
        for (const auto i : at) mean += in[i] / 16;
        for (const auto i : at) var += (in[i] - mean) * (in[i] - mean) / 16;
        if (own && tracks) {
          const double by = averages ? 1.0 / (step + 1) : 0.25;
          running_mean[c] += by * (mean - running_mean[c]);
          running_var[c] += by * (var * 16 / 15 - running_var[c]);
        }
        if (!own) {
          mean = running_mean[c];
          var = running_var[c];
        }
        const double w = affine ? 0.5 + static_cast<double>(c) : 1, b = affine ? 1.0 - static_cast<double>(c) : 0;
        for (const auto i : at) EXPECT_NEAR(got[i], (in[i] - mean) / std::sqrt(var + 1e-3) * w + b, 1e-12);
      }
    }
    if (!tracks) continue;
    expect_values(bn.running_mean(), running_mean, 1e-13);
    expect_values(bn.running_var(), running_var, 1e-13);
    expect_values(bn.num_batches_tracked(), {own ? 2.0 : 0.0}, 0);
  }
}

TEST(Layers, ForwardsReachTheirOps) {
  const Tensor x = wave({2, 2, 4, 4}, 0, 1, 0, DType::f32);
  EXPECT_EQ(MaxPool2d({.kernel = {2, 2}, .stride = {2, 2}}).forward(x).sizes(), (Dims{2, 2, 2, 2}));
  EXPECT_EQ(AvgPool2d({.kernel = {4, 4}, .stride = {4, 4}}).forward(x).sizes(), (Dims{2, 2, 1, 1}));
  EXPECT_EQ(AdaptiveAvgPool2d({1, 1}).forward(x).sizes(), (Dims{2, 2, 1, 1}));
  EXPECT_EQ(Flatten().forward(x).sizes(), (Dims{2, 32}));
  ConvTranspose2d up({.in_channels = 2, .out_channels = 3, .kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}});
  up.to(test::device());
  EXPECT_EQ(up.forward(x).sizes(), (Dims{2, 3, 8, 8}));
  EXPECT_EQ(names(up.named_parameters()), (std::vector<std::string>{"weight", "bias"}));
  Conv1d line({.in_channels = 2, .out_channels = 3, .kernel = 3, .padding = 1});
  line.to(test::device());
  EXPECT_EQ(line.forward(views::reshape(x, {4, 2, 8})).sizes(), (Dims{4, 3, 8}));
  ConvTranspose1d longer(
      {.in_channels = 2, .out_channels = 4, .kernel = 3, .stride = 3, .padding = 1, .output_padding = 2, .groups = 2});
  longer.to(test::device());
  EXPECT_EQ(names(longer.named_parameters()), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(longer.kind(), "ConvTranspose1d");
  const Tensor shorter = views::reshape(x, {4, 2, 8});
  expect_values(longer.forward(shorter),
                values(functional::conv_transpose1d(shorter, longer.weight(), longer.bias(),
                                                    {.stride = 3, .padding = 1, .output_padding = 2, .groups = 2})),
                0);
  EXPECT_TRUE(Identity().forward(x).is_same(x));
  expect_values(ReLU().forward(test::vector_of({-1, 2})), {0, 2}, 0);
  Generator g{3, 0};
  Dropout dropout(0.5, g);
  EXPECT_FALSE(dropout.forward(x).is_same(x));
  dropout.eval();
  EXPECT_TRUE(dropout.forward(x).is_same(x));
  Sequential s(std::make_shared<Conv2d>(
                   Conv2d::Options{.in_channels = 2, .out_channels = 3, .kernel = {3, 3}, .padding = {1, 1}}),
               std::make_shared<ReLU>(), std::make_shared<Flatten>(), std::make_shared<Linear>(48, 5));
  s.to(test::device());
  EXPECT_EQ(s(x).sizes(), (Dims{2, 5}));
  EXPECT_EQ(names(s.named_parameters()), (std::vector<std::string>{"0.weight", "0.bias", "3.weight", "3.bias"}));
}

}  // namespace
}  // namespace apex
