// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/reducer.hpp"

#include <gtest/gtest.h>

#include "toy.hpp"

namespace apex::parallel {
namespace {

using test::filled;
using test::gradient_is;

int ranks() { return dist::ProcessGroup::world().size(); }
int rank() { return dist::ProcessGroup::world().rank(); }

// PAR-15.17: 1.5 for four ranks.
TEST(Reducer, AveragesAListInPlace) {
  const double r = rank(), mean = (ranks() - 1) / 2.0;
  const Tensor a = filled({2}, r), b = filled({1}, r), c = filled({3}, r, DType::f64);
  const Tensor image = empty({1, 2, 2, 2}, DType::f32, test::device(), MemoryFormat::channels_last);
  test::assign(image, [&](std::int64_t i) { return double(i) + r; });
  Reducer reducer({a, c, b, image});
  EXPECT_EQ(test::to_f64(a)[0], r) << "nothing before reduce()";
  reducer.reduce();
  for (const double v : test::to_f64(a)) EXPECT_NEAR(v, mean, 1e-6);
  EXPECT_NEAR(b.item(), mean, 1e-6);
  for (const double v : test::to_f64(c)) EXPECT_NEAR(v, mean, 1e-15 * ranks());
  EXPECT_NEAR(test::to_f64(image)[5], 5 + mean, 1e-5);
  EXPECT_THROW(Reducer(std::vector<Tensor>{a, Tensor()}), Error);
  Reducer(std::vector<Tensor>{}).reduce();
}

TEST(Reducer, OfAModule) {
  const auto m = test::toy({{"a", 2}, {"b", 3, DType::f64}, {"c", 1}, {"d", 1}}, rank() + 1.0);
  Reducer reducer(m);
  EXPECT_EQ(test::to_f64(m->tensors[1])[2], 1.0) << "rank 0's parameters";
  std::vector<test::Fed> fed{{m->tensors[0], double(rank())}, {m->tensors[1], 2}};
  if (rank() == 0) fed.push_back({m->tensors[2], 4});
  backward(test::loss_of(fed));
  EXPECT_TRUE(gradient_is(m->tensors[0], rank())) << "never by itself";
  reducer.reduce();
  EXPECT_TRUE(gradient_is(m->tensors[0], (ranks() - 1) / 2.0, 1e-6));
  EXPECT_TRUE(gradient_is(m->tensors[1], 2, 1e-15));
  EXPECT_TRUE(gradient_is(m->tensors[2], 4.0 / ranks(), 1e-6)) << "ranks without one count as zero";
  EXPECT_FALSE(grad(m->tensors[3]).defined());
  EXPECT_THROW(Reducer(std::shared_ptr<nn::Module>()), Error);
}

}  // namespace
}  // namespace apex::parallel
