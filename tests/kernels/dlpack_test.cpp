// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/dlpack.hpp"

#include <dlpack/dlpack.h>

#include "support/tensors.hpp"

namespace apex {
namespace {

using test::throws;

TEST(DLPack, RoundTripKeepsEverything) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    Tensor t = test::from_function({2, 3, 4}, dtype, kCpu, [](std::int64_t i) { return static_cast<double>(i); });
    t = views::permute(t, {2, 0, 1});
    t = views::narrow(t, 0, 1, 2);
    const long owners = t.storage().use_count();
    DLManagedTensor* managed = to_dlpack(t);
    EXPECT_EQ(managed->dl_tensor.ndim, 3);
    EXPECT_EQ(managed->dl_tensor.device.device_type, kDLCPU);
    EXPECT_GT(t.storage().use_count(), owners);
    {
      const Tensor back = from_dlpack(managed);
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_EQ(back.sizes(), t.sizes());
      EXPECT_EQ(back.strides(), t.strides());
      EXPECT_EQ(back.raw_data(), t.raw_data());
      EXPECT_EQ(test::to_f64(back), test::to_f64(t));
    }
    EXPECT_EQ(t.storage().use_count(), owners) << "the deleter did not run";
  }
}

TEST(DLPack, BooleanTravelsAsBytes) {
  const Tensor t = from_values<bool>({3}, {true, false, true});
  DLManagedTensor* managed = to_dlpack(t);
  EXPECT_EQ(managed->dl_tensor.dtype.code, kDLUInt);
  EXPECT_EQ(managed->dl_tensor.dtype.bits, 8);
  EXPECT_EQ(test::to_f64(from_dlpack(managed)), (std::vector<double>{1, 0, 1}));
}

/// A tensor of somebody else's, which counts how often it is deleted.
struct Foreign {
  DLManagedTensor managed{};
  std::int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1};
  std::int64_t strides[9] = {3, 1, 1, 1, 1, 1, 1, 1, 1};
  float data[6] = {1, 2, 3, 4, 5, 6};
  int deleted = 0;

  Foreign() {
    managed.dl_tensor.data = data;
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* m) { ++static_cast<Foreign*>(m->manager_ctx)->deleted; };
  }
};

TEST(DLPack, TakesOverRowMajorWithoutStrides) {
  Foreign f;
  f.managed.dl_tensor.byte_offset = 4;
  f.managed.dl_tensor.shape[1] = 2;
  {
    const Tensor t = from_dlpack(&f.managed);
    EXPECT_EQ(t.strides(), (Dims{2, 1}));
    EXPECT_EQ(test::to_f64(t), (std::vector<double>{2, 3, 4, 5}));
    EXPECT_EQ(f.deleted, 0);
  }
  EXPECT_EQ(f.deleted, 1);
}

TEST(DLPack, RefusalLeavesTheTensorWithItsOwner) {
  const auto refused = [](Kind kind, const auto& spoil) {
    Foreign f;
    spoil(f);
    const auto result = throws(kind, "", [&] { from_dlpack(&f.managed); });
    EXPECT_EQ(f.deleted, 0);
    return result;
  };
  EXPECT_TRUE(refused(Kind::unsupported, [](Foreign& f) { f.managed.dl_tensor.dtype.lanes = 4; }));
  EXPECT_TRUE(refused(Kind::unsupported, [](Foreign& f) { f.managed.dl_tensor.dtype = {kDLComplex, 64, 1}; }));
  EXPECT_TRUE(refused(Kind::unsupported, [](Foreign& f) { f.managed.dl_tensor.dtype = {kDLFloat, 8, 1}; }));
  EXPECT_TRUE(refused(Kind::unsupported, [](Foreign& f) { f.managed.dl_tensor.device = {kDLCUDA, 99}; }));
  EXPECT_TRUE(refused(Kind::argument, [](Foreign& f) { f.managed.dl_tensor.ndim = 9; }));
  EXPECT_TRUE(refused(Kind::argument, [](Foreign& f) {
    f.managed.dl_tensor.strides = f.strides;
    f.strides[1] = -1;
  }));
  EXPECT_TRUE(throws(Kind::argument, "", [] { from_dlpack(nullptr); }));
}

}  // namespace
}  // namespace apex
