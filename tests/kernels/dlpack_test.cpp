// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/dlpack.hpp"

#include <dlpack/dlpack.h>

#include "support/on_device.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/kernels/elementwise.hpp"
#endif

namespace apex {
namespace {

using test::throws;

constexpr std::uint8_t kBool = 6;  // kDLBool, which headers before 0.8 do not name

const std::vector<DType> kAll = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                 DType::i64, DType::i32, DType::u8,  DType::boolean};

/// One of the two structures.
struct Plain {
  using Managed = DLManagedTensor;
  static Managed* give(const Tensor& t, std::optional<void*> stream = std::nullopt) { return to_dlpack(t, stream); }
  static Tensor take(Managed* m, std::optional<void*> stream = std::nullopt) { return from_dlpack(m, stream); }
  static void prepare(Managed&) {}
  static DType arrives_as(DType dtype) { return dtype == DType::boolean ? DType::u8 : dtype; }
};
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
struct Versioned {
  using Managed = DLManagedTensorVersioned;
  static Managed* give(const Tensor& t, std::optional<void*> stream = std::nullopt) {
    return to_dlpack_versioned(t, stream);
  }
  static Tensor take(Managed* m, std::optional<void*> stream = std::nullopt) {
    return from_dlpack_versioned(m, stream);
  }
  static void prepare(Managed& m) { m.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}; }
  static DType arrives_as(DType dtype) { return dtype; }
};
using Structures = ::testing::Types<Plain, Versioned>;
#else
using Structures = ::testing::Types<Plain>;
#endif

template <class S>
class DLPack : public ::testing::Test {};
TYPED_TEST_SUITE(DLPack, Structures);

TYPED_TEST(DLPack, RoundTripKeepsEverything) {
  for (const auto dtype : kAll) {
    Tensor t = test::from_function({2, 3, 4}, dtype, test::device(),
                                   [](std::int64_t i) { return static_cast<double>(i % 2 + i / 8); });
    t = views::permute(t, {2, 0, 1});
    t = views::narrow(t, 0, 1, 2);
    const long owners = t.storage().use_count();
    auto* managed = TypeParam::give(t);
    EXPECT_EQ(managed->dl_tensor.ndim, 3);
    EXPECT_EQ(managed->dl_tensor.device.device_type, test::on_cuda() ? kDLCUDA : kDLCPU);
    EXPECT_EQ(managed->dl_tensor.device.device_id, test::on_cuda() ? test::device().index : 0);
    EXPECT_EQ(managed->dl_tensor.byte_offset, 0u);
    EXPECT_GT(t.storage().use_count(), owners);
    {
      const Tensor back = TypeParam::take(managed);
      EXPECT_EQ(back.dtype(), TypeParam::arrives_as(dtype));
      EXPECT_EQ(back.device(), t.device());
      EXPECT_EQ(back.sizes(), t.sizes());
      EXPECT_EQ(back.strides(), t.strides());
      EXPECT_EQ(back.raw_data(), t.raw_data());
      EXPECT_EQ(test::to_f64(back), test::to_f64(t));
      const Tensor view = views::select(back, 0, 1);  // shares what was taken over
      EXPECT_GT(t.storage().use_count(), owners);
    }
    EXPECT_EQ(t.storage().use_count(), owners) << "the deleter did not run";
  }
}

TYPED_TEST(DLPack, AValueChangedOnOneSideIsSeenOnTheOther) {
  const Tensor ours = test::from_function({4}, DType::f32, test::device(), [](std::int64_t) { return 1; });
  const Tensor theirs = TypeParam::take(TypeParam::give(ours));
  test::assign(theirs, [](std::int64_t i) { return static_cast<double>(i); });
  EXPECT_EQ(test::to_f64(ours), (std::vector<double>{0, 1, 2, 3}));
  test::assign(ours, [](std::int64_t) { return 7; });
  EXPECT_EQ(test::to_f64(theirs), (std::vector<double>(4, 7)));
}

TYPED_TEST(DLPack, TheStorageOutlivesItsTensors) {
  auto* managed =
      TypeParam::give(test::from_function({3}, DType::i64, test::device(), [](std::int64_t i) { return i; }));
  EXPECT_EQ(test::to_f64(TypeParam::take(managed)), (std::vector<double>{0, 1, 2}));
}

TYPED_TEST(DLPack, EmptyTensorsAndScalars) {
  for (const Dims& sizes : {Dims{}, Dims{0}, Dims{3, 0, 2}, Dims{1, 1, 1, 1, 1, 1, 1, 1}}) {
    const Tensor back = TypeParam::take(TypeParam::give(test::make(sizes)));
    EXPECT_EQ(back.sizes(), sizes);
  }
}

TEST(DLPackTypes, BooleanTravelsAsBytes) {
  const Tensor t = test::on_device(from_values<bool>({3}, {true, false, true}));
  DLManagedTensor* managed = to_dlpack(t);
  EXPECT_EQ(managed->dl_tensor.dtype.code, kDLUInt);
  EXPECT_EQ(managed->dl_tensor.dtype.bits, 8);
  EXPECT_EQ(test::to_f64(from_dlpack(managed)), (std::vector<double>{1, 0, 1}));
}

/// A tensor of somebody else's, which counts how often it is deleted.
template <class S>
struct Foreign {
  typename S::Managed managed{};
  std::int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1};
  std::int64_t strides[9] = {3, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(8) float data[6] = {1, 2, 3, 4, 5, 6};
  int deleted = 0;

  Foreign() {
    S::prepare(managed);
    managed.dl_tensor.data = data;
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.manager_ctx = this;
    managed.deleter = [](typename S::Managed* m) { ++static_cast<Foreign*>(m->manager_ctx)->deleted; };
  }
};

TYPED_TEST(DLPack, TakesOverRowMajorWithoutStrides) {
  Foreign<TypeParam> f;
  f.managed.dl_tensor.byte_offset = 4;
  f.managed.dl_tensor.shape[1] = 2;
  {
    const Tensor t = TypeParam::take(&f.managed);
    EXPECT_EQ(t.strides(), (Dims{2, 1}));
    EXPECT_EQ(test::to_f64(t), (std::vector<double>{2, 3, 4, 5}));
    EXPECT_EQ(f.deleted, 0);
  }
  EXPECT_EQ(f.deleted, 1);
}

TYPED_TEST(DLPack, TakesStridesBooleansAndOwnersWithoutADeleter) {
  Foreign<TypeParam> f;
  f.strides[0] = 0;  // a row that stands for two
  f.strides[1] = 2;
  f.managed.dl_tensor.strides = f.strides;
  f.managed.deleter = nullptr;
  EXPECT_EQ(test::to_f64(TypeParam::take(&f.managed)), (std::vector<double>{1, 3, 5, 1, 3, 5}));
  const bool flags[6] = {true, false, false, true, true, false};
  f.managed.dl_tensor.data = const_cast<bool*>(flags);
  f.managed.dl_tensor.strides = nullptr;
  f.managed.dl_tensor.dtype = {kBool, 8, 1};
  const Tensor t = TypeParam::take(&f.managed);
  EXPECT_EQ(t.dtype(), DType::boolean);
  EXPECT_EQ(test::to_f64(t), (std::vector<double>{1, 0, 0, 1, 1, 0}));
}

TYPED_TEST(DLPack, RefusalLeavesTheTensorWithItsOwner) {
  const auto refused = [](Kind kind, const char* text, const auto& spoil) {
    Foreign<TypeParam> f;
    spoil(f);
    const auto result = throws(kind, text, [&] { TypeParam::take(&f.managed); });
    EXPECT_EQ(f.deleted, 0);
    return result;
  };
  using F = Foreign<TypeParam>;
  EXPECT_TRUE(refused(Kind::unsupported, "4 lanes", [](F& f) { f.managed.dl_tensor.dtype.lanes = 4; }));
  EXPECT_TRUE(refused(Kind::unsupported, "code 5", [](F& f) { f.managed.dl_tensor.dtype = {kDLComplex, 64, 1}; }));
  EXPECT_TRUE(refused(Kind::unsupported, "8 bits", [](F& f) { f.managed.dl_tensor.dtype = {kDLFloat, 8, 1}; }));
  EXPECT_TRUE(refused(Kind::unsupported, "number 99", [](F& f) { f.managed.dl_tensor.device = {kDLCUDA, 99}; }));
  EXPECT_TRUE(refused(Kind::unsupported, "type 4", [](F& f) { f.managed.dl_tensor.device = {kDLOpenCL, 0}; }));
  EXPECT_TRUE(refused(Kind::argument, "rank 9", [](F& f) { f.managed.dl_tensor.ndim = 9; }));
  EXPECT_TRUE(refused(Kind::argument, "rank -1", [](F& f) { f.managed.dl_tensor.ndim = -1; }));
  EXPECT_TRUE(refused(Kind::argument, "no shape", [](F& f) { f.managed.dl_tensor.shape = nullptr; }));
  EXPECT_TRUE(refused(Kind::argument, "negative size", [](F& f) { f.shape[0] = -2; }));
  EXPECT_TRUE(refused(Kind::argument, "no data", [](F& f) { f.managed.dl_tensor.data = nullptr; }));
  EXPECT_TRUE(refused(Kind::argument, "multiple of 4", [](F& f) { f.managed.dl_tensor.byte_offset = 2; }));
  EXPECT_TRUE(refused(Kind::argument, "negative stride", [](F& f) {
    f.managed.dl_tensor.strides = f.strides;
    f.strides[1] = -1;
  }));
  EXPECT_TRUE(throws(Kind::argument, "null", [] { TypeParam::take(nullptr); }));
  EXPECT_TRUE(throws(Kind::argument, "undefined", [] { TypeParam::give(Tensor()); }));
  F f;
  EXPECT_TRUE(throws(Kind::argument, "no stream", [&] { TypeParam::take(&f.managed, nullptr); }));
  EXPECT_EQ(f.deleted, 0);
  const Tensor host = empty({1});
  EXPECT_TRUE(throws(Kind::argument, "no stream", [&] { TypeParam::give(host, nullptr); }));
}

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
TEST(DLPackVersioned, VersionAndFlagsCount) {
  EXPECT_TRUE(has_versioned_dlpack());
  const Tensor t = test::on_device(from_values<bool>({2}, {true, false}));
  DLManagedTensorVersioned* managed = to_dlpack_versioned(t);
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  EXPECT_EQ(managed->dl_tensor.dtype.code, kBool);
  managed->deleter(managed);

  Foreign<Versioned> f;
  f.managed.version.minor += 5;  // a later minor version only adds
  f.managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
  EXPECT_EQ(test::to_f64(from_dlpack_versioned(&f.managed))[5], 6);
  EXPECT_EQ(f.deleted, 1);
  f.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  EXPECT_TRUE(throws(Kind::unsupported, "read-only", [&] { from_dlpack_versioned(&f.managed); }));
  f.managed.version.major = 2;
  EXPECT_TRUE(throws(Kind::unsupported, "of DLPack 2.", [&] { from_dlpack_versioned(&f.managed); }));
  EXPECT_EQ(f.deleted, 1);
}
#else
TEST(DLPackVersioned, SaysThatTheHeaderIsTooOld) {
  EXPECT_FALSE(has_versioned_dlpack());
  EXPECT_TRUE(throws(Kind::unsupported, "DLPack 0.x", [] { to_dlpack_versioned(empty({1})); }));
  EXPECT_TRUE(throws(Kind::unsupported, "DLPack 0.x", [] { from_dlpack_versioned(nullptr); }));
}
#endif

#ifdef APEX_HAS_CUDA
// Long work on one side's stream, then the exchange, then work on the other's: without the order the second reads what
// the first has not written yet.
TYPED_TEST(DLPack, StreamsAreOrderedBothWays) {
  if (!test::on_cuda()) GTEST_SKIP() << "streams are CUDA's";
  const std::int64_t n = std::int64_t{1} << 24;
  const cuda::Stream side(test::device());  // the other framework's
  const Context here = test::context(), there = side.context();
  const Tensor t = test::make({n}, DType::f32);
  const auto count_up = [&](const Context& ctx, int times) {
    for (int i = 0; i < times; ++i) kernels::scale_shift(ctx, t.view(), t.view(), 1, 1);
  };
  APEX_CHECK(cudaMemsetAsync(t.raw_data(), 0, t.bytes(), cuda::stream_of(here)));
  for (int round = 1; round <= 3; ++round) {
    count_up(here, 100);
    auto* given = TypeParam::give(t, side.get());
    count_up(there, 100);
    {
      const Tensor back = TypeParam::take(given, side.get());
      count_up(here, 50);
    }  // the deleter: what follows on the side comes after our 50
    count_up(there, 50);
    cuda::order(there, here);
    const auto values = test::to_f64(views::narrow(t, 0, n - 1000, 1000));
    EXPECT_EQ(values.front(), 300.0 * round);
    EXPECT_EQ(values.back(), 300.0 * round);
  }
}

// The consumer still reads when our last handle goes: the memory must not be handed out before.
TYPED_TEST(DLPack, MemoryIsReusedOnlyAfterTheConsumersWork) {
  if (!test::on_cuda()) GTEST_SKIP() << "streams are CUDA's";
  const std::int64_t n = std::int64_t{1} << 22;
  const cuda::Stream side(test::device());
  const Context here = test::context();
  const Tensor copy = test::make({n}, DType::f32), busy = test::make({n}, DType::f32);
  for (int round = 0; round < 5; ++round) {
    Tensor t = test::make({n}, DType::f32);
    APEX_CHECK(cudaMemsetAsync(t.raw_data(), 0, t.bytes(), cuda::stream_of(here)));
    auto* given = TypeParam::give(t, side.get());
    for (int i = 0; i < 200; ++i) kernels::scale_shift(side.context(), busy.view(), busy.view(), 1, 1);
    APEX_CHECK(
        cudaMemcpyAsync(copy.raw_data(), given->dl_tensor.data, t.bytes(), cudaMemcpyDeviceToDevice, side.get()));
    t = Tensor();
    given->deleter(given);
    const Tensor next = test::make({n}, DType::f32);  // likely the same block
    APEX_CHECK(cudaMemsetAsync(next.raw_data(), 0x7f, next.bytes(), cuda::stream_of(here)));
    cuda::synchronize(side.context());
    EXPECT_EQ(test::to_f64(views::narrow(copy, 0, n - 100, 100)), std::vector<double>(100, 0.0));
  }
}
#endif

}  // namespace
}  // namespace apex
