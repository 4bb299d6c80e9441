// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What the CPU loops do for speed must not show: stores past the cache, vectors and their rests give the bits of the
// plain loop, which strided operands take.
#include "cpu/streaming.hpp"

#include <omp.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "apex/kernels/activation.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/loss.hpp"
#include "apex/kernels/reduce.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::ActivationKind;
using kernels::BinaryOp;
using kernels::ReduceOp;
using kernels::UnaryOp;
namespace cpu = kernels::cpu;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The threshold for the time of a scope: 0 streams every row that is long enough, kNever none.
class Threshold {
 public:
  explicit Threshold(std::int64_t bytes) : before_(cpu::streaming_bytes().exchange(bytes)) {}
  ~Threshold() { cpu::streaming_bytes() = before_; }
  Threshold(const Threshold&) = delete;
  Threshold& operator=(const Threshold&) = delete;

 private:
  std::int64_t before_;
};

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
// Rows of a few lines and a rest, below and above the shortest that streams, and one that two threads share.
constexpr std::int64_t kLengths[] = {1, 15, 16, 17, 33, 1023, 1024, 1025, 2047, 2048, 2049, 4103, 40009};

/// Values over many magnitudes, with everything that is special among them.
Tensor varied(std::int64_t n, DType dtype, std::uint64_t seed) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0, -0.0, kInf, -kInf, 1e-40, -1e-7, 88.6, -103.5, 65504.0, 1.0};
  return test::from_function({n}, dtype, test::device(), [&](std::int64_t i) {
    const auto k = static_cast<std::uint64_t>(i);
    if (i % 13 == 5) return kSpecial[k / 13 % std::size(kSpecial)];
    if (i % 101 == 7) return std::nan("");
    return (test::unit(seed, k) - 0.5) * std::exp(12 * test::unit(seed + 1, k) - 8);
  });
}

/// n elements of a block of poison, from `offset` on; the block is kept to see what else was written.
struct Guarded {
  Tensor block, view;
  Guarded(std::int64_t n, DType dtype, std::int64_t offset)
      : block(test::make({n + 64}, dtype)), view(views::narrow(block, 0, offset, n)) {
    std::memset(block.raw_data(), 0x5a, block.bytes());
  }
};

/// The first element whose bits differ, all NaN being equal; -1 if none do.
std::int64_t difference(const Tensor& a, const Tensor& b) {
  const auto x = test::to_f64(a), y = test::to_f64(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!(x[i] == y[i] && std::signbit(x[i]) == std::signbit(y[i])) && !(std::isnan(x[i]) && std::isnan(y[i])))
      return static_cast<std::int64_t>(i);
  return -1;
}

TEST(Streaming, IsForLongRowsBeyondTheThreshold) {
  const Threshold threshold(100000);
  alignas(64) float x[1] = {};
  EXPECT_FALSE(cpu::streams(x, 1024, 100000));
  EXPECT_TRUE(cpu::streams(x, 1024, 100001));
  EXPECT_FALSE(cpu::streams(x, 1023, 100001));
  EXPECT_EQ(cpu::up_to_line(x), 0);
  EXPECT_EQ(cpu::up_to_line(x + 1), 15);
  EXPECT_EQ(cpu::up_to_line(x + 15), 1);
}

TEST(Streaming, TheDefaultThresholdIsThatOfACache) {
  EXPECT_GE(cpu::streaming_bytes().load(), std::int64_t{64} << 10);
  EXPECT_LE(cpu::streaming_bytes().load(), std::int64_t{40} << 20);
}

/// call(out, a, b) past the cache, through it, in place, and with strides: the same values, and nothing else written.
template <class Call>
void check_paths(DType dtype, std::int64_t n, const std::string& what, Call&& call) {
  const Tensor a = varied(n, dtype, 1), b = varied(n, dtype, 3);
  for (const std::int64_t offset : {0, 1, 31}) {
    SCOPED_TRACE(concat(what, ' ', dtype, ' ', n, " at ", offset));
    Guarded past(n, dtype, offset), through(n, dtype, offset);
    {
      const Threshold always(0);
      call(past.view, a, b);
      const Tensor in_place = test::misaligned(a);
      call(in_place, in_place, b);
      ASSERT_EQ(difference(in_place, past.view), -1);
    }
    const Threshold never(kNever);
    call(through.view, a, b);
    ASSERT_EQ(difference(past.view, through.view), -1);
    std::memcpy(past.view.raw_data(), through.view.raw_data(), past.view.bytes());  // what is around them
    ASSERT_EQ(std::memcmp(past.block.raw_data(), through.block.raw_data(), past.block.bytes()), 0);
    const Tensor apart = test::spread_out(through.view);
    call(apart, test::spread_out(a), test::spread_out(b));
    ASSERT_EQ(difference(apart, through.view), -1);
  }
}

TEST(Streaming, ElementwiseOpsGiveTheSameBits) {
  if (test::on_cuda()) return;
  for (const auto dtype : kFloating)
    for (const auto n : kLengths) {
      for (int op = 0; op <= static_cast<int>(UnaryOp::erf); ++op) {
        const auto u = static_cast<UnaryOp>(op);
        check_paths(dtype, n, name_of(u), [&](const Tensor& out, const Tensor& a, const Tensor&) {
          kernels::unary({}, out.view(), a.view(), u);
        });
      }
      for (const auto op :
           {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div, BinaryOp::minimum, BinaryOp::maximum})
        check_paths(dtype, n, name_of(op), [&](const Tensor& out, const Tensor& a, const Tensor& b) {
          kernels::binary({}, out.view(), a.view(), b.view(), op);
        });
      for (const kernels::Activation f : {kernels::Activation{ActivationKind::gelu},
                                          {ActivationKind::gelu_tanh},
                                          {ActivationKind::silu},
                                          {ActivationKind::leaky_relu, 0.2},
                                          {ActivationKind::elu, 1.5},
                                          {ActivationKind::softplus, 1.0, 20.0},
                                          {ActivationKind::clamp, -0.5, 0.75},
                                          {ActivationKind::log_sigmoid}}) {
        check_paths(dtype, n, name_of(f.kind), [&](const Tensor& out, const Tensor& a, const Tensor&) {
          kernels::activation({}, out.view(), a.view(), f);
        });
        check_paths(dtype, n, name_of(f.kind), [&](const Tensor& out, const Tensor& a, const Tensor& b) {
          kernels::activation_backward({}, out.view(), a.view(), b.view(), f);
        });
      }
      check_paths(dtype, n, "relu_backward", [&](const Tensor& out, const Tensor& a, const Tensor& b) {
        kernels::relu_backward({}, out.view(), a.view(), b.view());
      });
    }
}

TEST(Streaming, BroadcastRowsAndConstants) {
  if (test::on_cuda()) return;
  for (const auto dtype : kFloating)
    for (const Dims& sizes : {Dims{1, 3001}, Dims{3001}, Dims{7, 1}, Dims{1}}) {
      const Tensor a = views::reshape(varied(7 * 3001, dtype, 5), {7, 3001});
      const Tensor b = views::reshape(varied(element_count(sizes), dtype, 6), sizes);
      const Tensor past = test::fresh({7, 3001}, dtype), through = test::fresh({7, 3001}, dtype);
      {
        const Threshold always(0);
        kernels::binary({}, past.view(), a.view(), b.view(), BinaryOp::sub);
      }
      const Threshold never(kNever);
      kernels::binary({}, through.view(), a.view(), b.view(), BinaryOp::sub);
      EXPECT_EQ(difference(past, through), -1) << dtype << sizes;
      const Tensor apart = test::spread_out(through);
      kernels::binary({}, apart.view(), test::spread_out(a).view(), views::expand(b, {7, 3001}).view(), BinaryOp::sub);
      EXPECT_EQ(difference(apart, through), -1) << dtype << sizes;
    }
}

TEST(Streaming, CopiesCastsAndFills) {
  if (test::on_cuda()) return;
  for (const auto from : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8})
    for (const auto to : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::u8, DType::boolean})
      for (const std::int64_t n : {4095, 8200, 40009}) {
        const Tensor x = varied(n, from, 9);
        const std::int64_t offset = n % 7;
        Guarded past(n, to, offset), through(n, to, offset);
        {
          const Threshold always(0);
          kernels::copy({}, past.view.view(), x.view());
        }
        {
          const Threshold never(kNever);
          kernels::copy({}, through.view.view(), x.view());
        }
        ASSERT_EQ(std::memcmp(past.block.raw_data(), through.block.raw_data(), past.block.bytes()), 0)
            << from << to << n;
        const Threshold always(0);
        kernels::fill({}, past.view.view(), 1);
        EXPECT_EQ(test::to_f64(past.view), std::vector<double>(static_cast<std::size_t>(n), 1.0)) << to;
        kernels::copy({}, through.view.view(), past.view.view());
        ASSERT_EQ(std::memcmp(past.block.raw_data(), through.block.raw_data(), past.block.bytes()), 0) << to << n;
      }
}

TEST(Streaming, BitsDoNotDependOnTheThreads) {
  if (test::on_cuda()) return;
  const int threads = omp_get_max_threads();
  for (const std::int64_t bytes : {std::int64_t{0}, kNever}) {
    const Threshold threshold(bytes);
    for (const auto dtype : {DType::f32, DType::f16, DType::bf16})
      for (const auto kind : {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::log_sigmoid}) {
        const Tensor a = varied(100003, dtype, 1), one = empty_like(a), three = empty_like(a);
        omp_set_num_threads(1);
        kernels::activation({}, one.view(), a.view(), {kind});
        omp_set_num_threads(3);
        kernels::activation({}, three.view(), a.view(), {kind});
        omp_set_num_threads(threads);
        EXPECT_EQ(std::memcmp(one.raw_data(), three.raw_data(), one.bytes()), 0) << dtype << name_of(kind);
      }
  }
}

// f32 to 16 bits in vectors against one by one: every upper half with lower halves around ties, NaNs of any payload.
TEST(Vectors, RoundAsOneByOne) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u, 0x3000u})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  const auto n = static_cast<std::int64_t>(x.size());
  const auto check = [&]<class T>() {
    std::vector<T> block(x.size()), past(x.size() + 64);
    cpu::store_halves(block.data(), x.data(), n);
    T* aligned = past.data() + cpu::up_to_line(past.data());
    cpu::stream_block(aligned, x.data(), n);
    cpu::end_streaming();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T want(x[i]);
      ASSERT_EQ(std::bit_cast<std::uint16_t>(block[i]), std::bit_cast<std::uint16_t>(want)) << x[i] << ' ' << i;
      ASSERT_EQ(std::bit_cast<std::uint16_t>(aligned[i]), std::bit_cast<std::uint16_t>(want)) << x[i] << ' ' << i;
    }
  };
  check.operator()<bfloat16>();
  check.operator()<float16>();
}

TEST(Vectors, ReductionsAreThoseOfStridedOperands) {
  if (test::on_cuda()) return;
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16})
    for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min})
      for (const Dims& sizes :
           {Dims{1, 1}, Dims{3, 7}, Dims{5, 31}, Dims{70, 33}, Dims{9, 4096}, Dims{3, 4113}, Dims{2, 8192},
            Dims{2, 12305}, Dims{521, 40}, Dims{64, 15}, Dims{1100, 64}, Dims{67, 1061}})
        for (int special = 0; special < 3; ++special)  // plain numbers; zeros of two signs; a NaN somewhere
          for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}}) {
            const std::int64_t n = sizes[0] * sizes[1], at = (n * 2) / 3;
            const Tensor x = test::from_function(sizes, dtype, test::device(), [&](std::int64_t i) {
              const double u = test::unit(11, static_cast<std::uint64_t>(i));
              if (special == 1) return u < 0.5 ? 0.0 : -0.0;
              return special == 2 && i == at ? std::nan("") : u - 0.5;
            });
            Dims kept = sizes;
            for (int d = 0; d < 2; ++d)
              if (dims.empty() || dims[0] == d) kept[d] = 1;
            const Tensor whole = test::fresh(kept, dtype), apart = test::fresh(kept, dtype);
            kernels::reduce({}, whole.view(), x.view(), dims, op);
            kernels::reduce({}, apart.view(), test::spread_out(x).view(), dims, op);
            ASSERT_EQ(difference(whole, apart), -1) << name_of(op) << dtype << sizes << dims << special;
            std::int64_t nans = 0;
            for (const double v : test::to_f64(whole)) nans += std::isnan(v);
            ASSERT_EQ(nans, special == 2 ? 1 : 0) << name_of(op) << dtype << sizes << dims;
          }
}

TEST(Vectors, ANaNInAnyPlaceIsFound) {
  if (test::on_cuda()) return;
  for (const std::int64_t n : {7, 16, 37, 8200}) {
    const Tensor x = test::uniform({n}, DType::f32, test::device(), 4), y = test::make({1}), z = test::make({1, n});
    float* data = static_cast<float*>(x.raw_data());
    for (std::int64_t at = 0; at<n; at += n> 1000 ? 61 : 1) {
      const float before = data[at];
      data[at] = NAN;
      for (const auto op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
        kernels::reduce({}, y.view(), x.view(), {0}, op);
        ASSERT_TRUE(std::isnan(y.item())) << n << ' ' << at << name_of(op);
      }
      data[at] = before;
    }
  }
}

/// The largest error of `op` in f32 in units of the last place, over numbers of all magnitudes between the limits.
double worst_error(UnaryOp op, double (*want)(double), double low, double high) {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4093) {
    const float v = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (v >= low && v <= high) x.push_back(v);
  }
  const Tensor in = test::values<float>({static_cast<std::int64_t>(x.size())}, x), out = empty_like(in);
  kernels::unary({}, out.view(), in.view(), op);
  const auto got = test::to_f64(out);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = want(static_cast<double>(x[i]));
    int exponent;
    std::frexp(exact, &exponent);
    worst = std::max(worst, std::fabs(got[i] - exact) / std::ldexp(1.0, std::max(exponent - 24, -149)));
  }
  return worst;
}

TEST(Vectors, FunctionsKeepTheirAccuracy) {
  if (test::on_cuda()) return;
  constexpr double kEnd = std::numeric_limits<float>::max();
  EXPECT_LE(worst_error(
                UnaryOp::exp, [](double v) { return std::exp(v); }, -kEnd, 88.7),
            2);
  EXPECT_LE(worst_error(
                UnaryOp::log, [](double v) { return std::log(v); }, 1e-45, kEnd),
            2);
  EXPECT_LE(worst_error(
                UnaryOp::tanh, [](double v) { return std::tanh(v); }, -kEnd, kEnd),
            2);
  EXPECT_LE(worst_error(
                UnaryOp::sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, -87, kEnd),
            2.5);
  EXPECT_LE(worst_error(
                UnaryOp::erf, [](double v) { return std::erf(v); }, -kEnd, kEnd),
            2.5);
}

}  // namespace
}  // namespace apex
