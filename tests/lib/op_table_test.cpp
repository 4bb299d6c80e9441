// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <map>
#include <set>

#include "apex/autograd/ops.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

namespace F = nn::functional;

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

/// A call of each op on fresh inputs of one dtype; an op without an entry fails the test.
const std::map<Op, std::function<Tensor(const Tensor& x, const Tensor& other)>>& calls() {
  static const Tensor labels = test::from_values<std::int64_t>({2}, {1, 0});
  const auto matrix = [](const Tensor& x) { return views::reshape(x.detach(), {4, 4}); };
  static const std::map<Op, std::function<Tensor(const Tensor&, const Tensor&)>> all = {
      {Op::add, F::add},
      {Op::sub, F::sub},
      {Op::mul, F::mul},
      {Op::div, F::div},
      {Op::minimum, F::minimum},
      {Op::maximum, F::maximum},
      {Op::scale, [](const Tensor& x, const Tensor&) { return F::scale(x, 2.0); }},
      {Op::where, [](const Tensor& x, const Tensor&) { return F::where(x, test::ones({}), test::zeros({})); }},
      {Op::neg, [](const Tensor& x, const Tensor&) { return F::neg(x); }},
      {Op::abs, [](const Tensor& x, const Tensor&) { return F::abs(x); }},
      {Op::exp, [](const Tensor& x, const Tensor&) { return F::exp(x); }},
      {Op::log, [](const Tensor& x, const Tensor&) { return F::log(x); }},
      {Op::sqrt, [](const Tensor& x, const Tensor&) { return F::sqrt(x); }},
      {Op::rsqrt, [](const Tensor& x, const Tensor&) { return F::rsqrt(x); }},
      {Op::reciprocal, [](const Tensor& x, const Tensor&) { return F::reciprocal(x); }},
      {Op::square, [](const Tensor& x, const Tensor&) { return F::square(x); }},
      {Op::tanh, [](const Tensor& x, const Tensor&) { return F::tanh(x); }},
      {Op::sigmoid, [](const Tensor& x, const Tensor&) { return F::sigmoid(x); }},
      {Op::relu, [](const Tensor& x, const Tensor&) { return F::relu(x); }},
      {Op::sum, [](const Tensor& x, const Tensor&) { return F::sum(x, {0}); }},
      {Op::mean, [](const Tensor& x, const Tensor&) { return F::mean(x, {1}); }},
      {Op::reshape, [](const Tensor& x, const Tensor&) { return F::reshape(x, {-1}); }},
      {Op::permute, [](const Tensor& x, const Tensor&) { return F::transpose(x, 0, 1); }},
      {Op::narrow, [](const Tensor& x, const Tensor&) { return F::narrow(x, 0, 0, 1); }},
      {Op::expand,
       [](const Tensor& x, const Tensor&) {
         return F::expand(x, {3, 2, 2, 2, 2});
       }},
      {Op::contiguous, [](const Tensor& x, const Tensor&) { return F::contiguous(x, MemoryFormat::channels_last); }},
      {Op::cast, [](const Tensor& x, const Tensor&) { return F::cast(x, DType::f64); }},
      {Op::to_device, [](const Tensor& x, const Tensor&) { return F::to(x, kCpu); }},
      {Op::matmul,
       [matrix](const Tensor& x, const Tensor& o) {
         return F::matmul(F::reshape(x, {4, 4}), matrix(o));
       }},
      {Op::baddbmm,
       [matrix](const Tensor& x, const Tensor& o) {
         return F::baddbmm(F::reshape(x, {4, 4}), matrix(o), F::reshape(x, {4, 4}), 0.5, 2.0);
       }},
      {Op::linear,
       [matrix](const Tensor& x, const Tensor& o) {
         return F::linear(F::reshape(x, {4, 4}), matrix(o));
       }},
      {Op::conv2d, [](const Tensor& x, const Tensor& o) { return F::conv2d(x, o); }},
      {Op::conv_transpose2d, [](const Tensor& x, const Tensor& o) { return F::conv_transpose2d(x, o); }},
      {Op::conv2d_weight,
       [](const Tensor& x, const Tensor& o) {
         return F::conv2d_weight(x, {2, 2, 1, 1}, o);
       }},
      {Op::batch_norm, [](const Tensor& x, const Tensor&) { return F::batch_norm(x, {}); }},
      {Op::batch_norm_relu, [](const Tensor& x, const Tensor&) { return F::batch_norm_relu(x, {}); }},
      {Op::batch_norm_add_relu, [](const Tensor& x, const Tensor& o) { return F::batch_norm_add_relu(x, o, {}); }},
      {Op::max_pool2d, [](const Tensor& x, const Tensor&) { return F::max_pool2d(x, {}); }},
      {Op::avg_pool2d, [](const Tensor& x, const Tensor&) { return F::avg_pool2d(x, {}); }},
      {Op::adaptive_avg_pool2d,
       [](const Tensor& x, const Tensor&) {
         return F::adaptive_avg_pool2d(x, {1, 1});
       }},
      {Op::softmax, [](const Tensor& x, const Tensor&) { return F::softmax(x, 1); }},
      {Op::log_softmax, [](const Tensor& x, const Tensor&) { return F::log_softmax(x, 1); }},
      {Op::cross_entropy,
       [](const Tensor& x, const Tensor&) {
         return F::cross_entropy(F::reshape(x, {2, 8}), labels);
       }},
      {Op::dropout,
       [](const Tensor& x, const Tensor&) {
         Generator g{1, 0};
         return F::dropout(x, 0.5, true, g);
       }},
  };
  return all;
}

class EveryOp : public ::testing::TestWithParam<DType> {};

TEST_P(EveryOp, RunsInItsDTypesAndThrowsInOthers) {
  const DType dtype = GetParam();
  for (const OpRow& row : kOps) {
    SCOPED_TRACE(row.name);
    const auto call = calls().find(row.op);
    ASSERT_NE(call, calls().end()) << "this op has no call in the test";
    const Tensor x = F::cast(test::wave({2, 2, 2, 2}, 0, 1, 1.5, DType::f32), dtype);
    const Tensor other = F::cast(test::wave({2, 2, 2, 2}, 1, 1, 1.5, DType::f32), dtype);
    if ((row.dtypes & bit(dtype)) == 0) {
      test::expect_error(Kind::unsupported, row.name, [&] { call->second(x, other); });
      continue;
    }
    if (is_floating(dtype)) set_requires_grad(x);
    const Tensor y = call->second(x, other);
    EXPECT_TRUE(y.defined());
    if (!is_floating(dtype)) continue;
    EXPECT_TRUE(requires_grad(y));
    backward(y, apex::full(y.sizes(), 1.0, y.dtype(), y.device()));
    ASSERT_TRUE(grad(x).defined());
    EXPECT_EQ(grad(x).dtype(), dtype);
    for (const double g : test::values(grad(x))) EXPECT_TRUE(std::isfinite(g));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, EveryOp, ::testing::ValuesIn(kAll),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST(OpTable, TwiceDifferentiableAsDeclared) {
  for (const OpRow& row : kOps) {
    SCOPED_TRACE(row.name);
    if (row.op == Op::where || (row.op == Op::to_device && !test::on_cuda()))
      continue;  // the call has no differentiable input, or copies nothing
    const Tensor x =
        set_requires_grad(test::wave({2, 2, 2, 2}, 0, 1, 1.5, row.op == Op::cast ? DType::f32 : DType::f64));
    const Tensor other = test::wave({2, 2, 2, 2}, 1, 1, 1.5);
    const Tensor y = calls().at(row.op)(x, other);
    backward(F::sum(F::square(y)), {}, {.create_graph = true});
    const Tensor first = grad(x);
    set_grad(x, {});
    ASSERT_TRUE(requires_grad(first));
    const auto second = [&] { backward(F::sum(F::square(first))); };
    if (row.double_differentiable) {
      EXPECT_NO_THROW(second());
      EXPECT_TRUE(grad(x).defined());
    } else {
      test::expect_error(Kind::unsupported, "not twice differentiable", second);
    }
    set_grad(x, {});
  }
}

TEST(OpTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const OpRow& row : kOps) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

}  // namespace
}  // namespace apex
