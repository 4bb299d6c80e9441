// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What DistributedDataParallel computes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "apex/nn/layers.hpp"
#include "toy.hpp"

namespace apex::parallel {
namespace {

using test::Fed;
using test::filled;
using test::gradient_is;
using test::step;
using test::thrown;
using test::Toy;
using test::toy;
using Options = DistributedDataParallelOptions;

int ranks() { return dist::ProcessGroup::world().size(); }
int rank() { return dist::ProcessGroup::world().rank(); }
/// Mean over the ranks of 2 r + 1: 2 for two ranks.
double mean_of_odd() { return ranks(); }

/// The modes of reducing: each must give the same.
std::vector<std::pair<const char*, Options>> every_mode() {
  return {{"overlap", {}},
          {"small buckets", {.message_size = 1}},
          {"capped", {.bucket_cap_mb = 1e-5, .first_bucket_kb = 0.004}},
          {"delayed", {.delay_allreduce = true}},
          {"three streams", {.message_size = 1, .num_allreduce_streams = 3}},
          {"unused allowed", {.find_unused_parameters = true}},
          {"retained", {.message_size = 4, .retain_allreduce_buffers = true}}};
}

// PAR-15.5: grads 1 and 3 for two ranks.
TEST(Ddp, Arithmetic) {
  const double sum = mean_of_odd() * ranks();
  struct Case {
    Options options;
    double want;
  };
  for (const auto& [options, want] : {Case{{}, mean_of_odd()}, Case{{.gradient_average = false}, sum},
                                      Case{{.gradient_predivide_factor = 2}, mean_of_odd()},
                                      Case{{.gradient_average = false, .gradient_predivide_factor = 2}, sum / 2}}) {
    const auto module = toy({{"p", 5, DType::f64}});
    DistributedDataParallel ddp(module, {}, options);
    for (int i = 0; i < 3; ++i) {  // recording, then overlapped
      ddp.zero_grad();
      step(ddp, {{module->tensors[0], 2.0 * rank() + 1}});
      EXPECT_TRUE(gradient_is(module->tensors[0], want, 1e-15 * want)) << "iteration " << i;
    }
  }
}

// PAR-15.6
TEST(Ddp, RangeOf16Bits) {
  if (ranks() != 4) GTEST_SKIP() << "for four ranks";
  const auto reduced = [](const Options& options) {
    const auto module = toy({{"p", 7, DType::f16}});
    DistributedDataParallel ddp(module, {}, options);
    for (int i = 0; i < 2; ++i) {
      ddp.zero_grad();
      step(ddp, {{module->tensors[0], 20000.0}});
    }
    EXPECT_EQ(grad(module->tensors[0]).dtype(), DType::f16);
    return test::to_f64(grad(module->tensors[0]))[3];
  };
  EXPECT_EQ(reduced({}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(reduced({.gradient_predivide_factor = 4}), 20000);
  EXPECT_EQ(reduced({.allreduce_always_fp32 = true}), 20000);
}

// PAR-15.7
TEST(Ddp, Race) {
  class Net : public nn::Module {
   public:
    Net() {
      a = register_parameter("a", filled({64, 64}, 1.0));
      b = register_parameter("b", filled({64, 64}, 2.0));
    }
    Tensor forward(const Tensor& x) override {
      return nn::functional::sum(nn::functional::mul(nn::functional::mul(x, a), b));
    }
    Tensor a, b;
  };
  const auto check = [&](const char* name, auto make_options) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, {}, make_options(*net));
    for (int i = 0; i < 10; ++i) {
      ddp.zero_grad(i % 2 == 0);
      backward(ddp.forward(filled({64, 64}, i + rank())));
      const double mean = i + (ranks() - 1) / 2.0;
      EXPECT_TRUE(gradient_is(net->a, 2 * mean, 1e-6)) << name << ' ' << i;
      EXPECT_TRUE(gradient_is(net->b, mean, 1e-6)) << name << ' ' << i;
    }
  };
  check("message size 1", [](const Net&) { return Options{.message_size = 1}; });
  check("delayed", [](const Net&) { return Options{.delay_allreduce = true}; });
  check("trigger", [](const Net& n) { return Options{.allreduce_trigger_params = {n.b}}; });
  check("trigger, three streams",
        [](const Net& n) { return Options{.allreduce_trigger_params = {n.b}, .num_allreduce_streams = 3}; });
  check("predivide", [](const Net&) { return Options{.gradient_predivide_factor = 8}; });
}

// PAR-15.14
TEST(Ddp, EveryFloatingDTypeInEveryMode) {
  const std::vector<DType> dtypes{DType::f16, DType::bf16, DType::f32, DType::f64};
  for (const auto& [name, options] : every_mode()) {
    std::vector<Toy::Parameter> list;
    for (int i = 0; i < 12; ++i)
      list.push_back({concat('p', i), 1 + i % 3 * 5, dtypes[static_cast<std::size_t>(i) % 4]});
    const auto module = toy(list);
    DistributedDataParallel ddp(module, {}, options);
    for (int iteration = 0; iteration < 3; ++iteration) {
      ddp.zero_grad();
      std::vector<Fed> fed;
      for (int i = 12; i-- > 0;)
        fed.push_back({module->tensors[static_cast<std::size_t>(i)], (2.0 * rank() + 1) * (i % 5 + 1)});
      step(ddp, fed);
      for (int i = 0; i < 12; ++i) {
        const double want = mean_of_odd() * (i % 5 + 1);
        const double epsilon = std::vector{0x1p-10, 0x1p-7, 0x1p-23, 0x1p-52}[static_cast<std::size_t>(i) % 4];
        EXPECT_TRUE(gradient_is(module->tensors[static_cast<std::size_t>(i)], want, want * epsilon))
            << name << ", iteration " << iteration << ", p" << i;
      }
    }
    for (const auto& bucket : ddp.bucket_plan().buckets)
      for (const auto i : bucket) EXPECT_EQ(i % 4, bucket.front() % 4) << "no bucket mixes dtypes";
  }
}

TEST(Ddp, ChannelsLastParametersAndOddGradientLayouts) {
  class Conv : public nn::Module {
   public:
    Conv() { w = register_parameter("w", empty({2, 3, 2, 2}, DType::f64, test::device())); }
    Tensor w;
  };
  const auto module = std::make_shared<Conv>();
  fill_(module->w.detach(), 1.0);
  module->to(MemoryFormat::channels_last);
  DistributedDataParallel ddp(module);
  for (int i = 0; i < 3; ++i) {
    // Rank 0's gradient arrives row-major, the others' channels-last.
    const Tensor g = empty({2, 3, 2, 2}, DType::f64, test::device(),
                           rank() == 0 ? MemoryFormat::contiguous : MemoryFormat::channels_last);
    test::assign(g, [](std::int64_t e) { return double(e * (rank() + 1)); });
    if (i == 0) set_grad(module->w, g);  // and an existing one may lie either way
    const Tensor out = ddp.run([&] {
                            return std::vector<Tensor>{record(
                                filled({1}, 0.0, DType::f64),
                                {.name = "feed", .inputs = {module->w}, .backward = [g](const Tensor&) -> Gradients {
                                   return {clone(g)};
                                 }})};
                          })
                           .front();
    backward(out);
    const auto got = test::to_f64(grad(module->w));
    for (std::size_t e = 0; e < got.size(); ++e)
      ASSERT_NEAR(got[e], (i == 0 ? 2 : 1) * double(e) * (ranks() + 1) / 2, 1e-12) << e;
    ddp.zero_grad();
  }
}

TEST(Ddp, OneRankLeavesBitsAlone) {
  const auto alone = dist::ProcessGroup::world().partition(1);
  for (const auto& [name, options] : every_mode()) {
    const auto module = toy({{"a", 1000, DType::f32}, {"b", 3, DType::f16}});
    DistributedDataParallel ddp(module, alone, options);
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      step(ddp, {{module->tensors[1], 0.1}, {module->tensors[0], 1.0 / 3}});
      EXPECT_TRUE(gradient_is(module->tensors[0], double(float(1.0 / 3)))) << name;
      EXPECT_TRUE(gradient_is(module->tensors[1], double(float(float16(0.1))))) << name;
    }
  }
}

// PAR-15.37, without SyncBN: all ranks hold the same bits, and a repeated run holds them again.
TEST(Ddp, RanksAndRepeatsAgreeBitByBit) {
  const auto run = [](const Options& options) {
    const auto m = toy({{"a", 1001}, {"b", 33}, {"c", 500}});
    DistributedDataParallel ddp(m, {}, options);
    std::string bytes;
    for (int s = 0; s < 5; ++s) {
      ddp.zero_grad();
      step(ddp, {{m->tensors[2], std::sin(s + 3.0 * rank())},
                 {m->tensors[1], 1e4 * std::cos(s + rank())},
                 {m->tensors[0], 0.1 * (rank() + s)}});
      for (const Tensor& p : m->tensors) {
        const Tensor g = grad(p);
        add_(p.detach(), g, -0.1);
        const Tensor host = test::on_host(p);
        bytes.append(static_cast<const char*>(host.raw_data()), host.bytes());
      }
    }
    return bytes;
  };
  for (const auto& [name, options] : every_mode()) {
    const std::string first = run(options);
    for (const std::string& other : dist::ProcessGroup::world().all_gather(first)) EXPECT_TRUE(other == first) << name;
    const char* mode = std::getenv("APEX_TEST_SESSION");
    // On a GPU each run makes communicators, which last as long as the session: fewer.
    const bool many = mode != nullptr && std::string(mode) == "deterministic" && !test::on_cuda();
    const int repeats = many ? 20 : 2;
    for (int i = 0; i < repeats; ++i) EXPECT_TRUE(run(options) == first) << name;
  }
}

/// A network on shards of a batch gives what one rank gives on the whole batch.
TEST(Ddp, ShardsGiveTheGradientOfTheWholeBatch) {
  class Mlp : public nn::Module {
   public:
    Mlp() {
      first_ = std::make_shared<nn::Linear>(5, 7);
      second_ = std::make_shared<nn::Linear>(7, 3);
      register_module("first", first_);
      register_module("second", second_);
      to(test::device(), DType::f64, MemoryFormat::contiguous);
    }
    Tensor forward(const Tensor& x) override { return second_->forward(nn::functional::relu(first_->forward(x))); }

   private:
    std::shared_ptr<nn::Linear> first_, second_;
  };
  const std::int64_t per_rank = 4, batch = per_rank * ranks();
  const Tensor x = empty({batch, 5}, DType::f64, test::device());
  test::assign(x, [](std::int64_t i) { return std::sin(double(i) * 1.3); });
  const auto loss = [](const Tensor& y) { return nn::functional::mean(nn::functional::square(y)); };
  for (const auto& [name, options] : every_mode()) {
    const auto net = std::make_shared<Mlp>(), whole = std::make_shared<Mlp>();
    DistributedDataParallel ddp(net, {}, options);
    whole->load_state_dict(net->state_dict());
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      whole->zero_grad();
      backward(loss(ddp.forward(views::narrow(x, 0, rank() * per_rank, per_rank))));
      backward(loss(whole->forward(x)));
      const auto got = net->parameters(), want = whole->parameters();
      for (std::size_t p = 0; p < got.size(); ++p) {
        const auto g = test::to_f64(grad(got[p])), w = test::to_f64(grad(want[p]));
        for (std::size_t e = 0; e < g.size(); ++e) EXPECT_NEAR(g[e], w[e], 1e-14) << name << ' ' << p << ' ' << e;
      }
    }
  }
}

}  // namespace
}  // namespace apex::parallel
