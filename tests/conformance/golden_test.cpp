// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The reader of golden files and the rule of comparison.
#include "golden.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "apex/core/error.hpp"
#include "compare.hpp"
#include "conformance/hdf5_edit.hpp"

namespace {

using namespace apex;
using conformance::Comparison;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Kind::data) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

void expect_refused(const std::string& path, const std::string& part) {
  const std::string message = message_of([&] { conformance::read_golden(path); });
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

void write_small_case(const std::string& path) {
  test::edit_file(path, true, [](hid_t file) {
    test::put_attribute(file, "/", "op", std::string("axpy"));
    std::vector<double> many(600);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = 0.5 * static_cast<double>(i);
    test::put_dataset(file, "/first/inputs/x", H5T_IEEE_F32LE, {20, 30}, many, true);
    test::put_attribute(file, "/first/inputs/x", "dtype", std::string("bfloat16"));
    test::put_dataset(file, "/first/inputs/labels", H5T_STD_I64BE, {3}, {-1, 0, 4503599627370497.0});
    test::put_attribute(file, "/first/inputs/labels", "dtype", std::string("int64"));
    test::put_dataset(file, "/first/outputs/loss", H5T_IEEE_F64BE, {}, {0.1});
    test::put_dataset(file, "/first/plain", H5T_STD_U8LE, {0}, {});
    test::put_attribute(file, "/first", "alpha", 0.25);
    test::put_attribute(file, "/first", "steps", std::int64_t{7});
    test::put_attribute(file, "/first", "source", std::string("numpy"));
  });
}

TEST(Golden, ReadsEveryKindOfContent) {
  const test::TempDir folder;
  write_small_case(folder.file("a.h5"));
  const auto golden = conformance::read_golden(folder.file("a.h5"));
  EXPECT_EQ(golden.op, "axpy");
  ASSERT_EQ(golden.cases.size(), 1u);
  const auto& c = golden.cases[0];
  EXPECT_EQ(c.name, "first");
  EXPECT_EQ(c.number("alpha"), 0.25);
  EXPECT_EQ(c.integer("steps"), 7);
  EXPECT_EQ(c.number("steps"), 7.0);
  EXPECT_EQ(c.text("source"), "numpy");
  EXPECT_EQ(c.dataset("inputs/x").dtype, DType::bf16);
  const auto& x = c.numbers("inputs/x", {20, 30});
  EXPECT_EQ(x[599], 299.5);
  EXPECT_EQ(c.numbers("inputs/labels", {3}), (std::vector<double>{-1, 0, 4503599627370497.0}));
  EXPECT_EQ(c.dataset("inputs/labels").dtype, DType::i64);
  EXPECT_EQ(c.numbers("outputs/loss", {}), std::vector<double>{0.1});
  EXPECT_EQ(c.dataset("outputs/loss").dtype, DType::f64);
  EXPECT_TRUE(c.numbers("plain", {0}).empty());
  EXPECT_NO_THROW(c.require_all_read());
}

TEST(Golden, NamesWhatNobodyAskedFor) {
  const test::TempDir folder;
  write_small_case(folder.file("a.h5"));
  const auto golden = conformance::read_golden(folder.file("a.h5"));
  const auto& c = golden.cases[0];
  for (const char* path : {"inputs/x", "inputs/labels", "outputs/loss"}) c.dataset(path);
  c.number("alpha");
  c.text("source");
  const std::string message = message_of([&] { c.require_all_read(); });
  EXPECT_NE(message.find("does not know attribute steps, dataset plain"), std::string::npos) << message;
}

TEST(Golden, AsksForNameTypeAndSizes) {
  const test::TempDir folder;
  write_small_case(folder.file("a.h5"));
  const auto golden = conformance::read_golden(folder.file("a.h5"));
  const auto& c = golden.cases[0];
  EXPECT_NE(message_of([&] { c.number("beta"); }).find("lacks the attribute beta"), std::string::npos);
  EXPECT_NE(message_of([&] { c.integer("alpha"); }).find("alpha is not an integer"), std::string::npos);
  EXPECT_NE(message_of([&] { c.number("source"); }).find("source is not a number"), std::string::npos);
  EXPECT_NE(message_of([&] { c.text("alpha"); }).find("alpha is not a string"), std::string::npos);
  EXPECT_NE(message_of([&] { c.dataset("inputs/y"); }).find("lacks the dataset inputs/y"), std::string::npos);
  EXPECT_NE(message_of([&] { c.numbers("inputs/x", {30, 20}); }).find("[30, 20], not [20, 30]"), std::string::npos);
  EXPECT_NE(message_of([&] { c.strings("inputs/x"); }).find("list of strings"), std::string::npos);
}

TEST(Golden, RefusesWhatTheFormatDoesNotHave) {
  const test::TempDir folder;
  const auto broken = [&](const std::string& name, const std::string& part, const std::function<void(hid_t)>& edit) {
    SCOPED_TRACE(name);
    write_small_case(folder.file(name));
    test::edit_file(folder.file(name), false, edit);
    expect_refused(folder.file(name), part);
  };
  broken("no_op.h5", "no attribute op", [](hid_t f) { test::done(H5Adelete_by_name(f, "/", "op", H5P_DEFAULT)); });
  broken("op_number.h5", "@op", [](hid_t f) { test::put_attribute(f, "/", "op", 1.0); });
  broken("file_attribute.h5", "@date", [](hid_t f) { test::put_attribute(f, "/", "date", std::string("today")); });
  broken("no_case.h5", "no case", [](hid_t f) { test::done(H5Ldelete(f, "/first", H5P_DEFAULT)); });
  broken("loose.h5", "not a case", [](hid_t f) { test::put_dataset(f, "/x", H5T_IEEE_F64LE, {1}, {1}); });
  broken("deep.h5", "too deep", [](hid_t f) { test::put_dataset(f, "/first/inputs/a/b", H5T_IEEE_F64LE, {1}, {1}); });
  broken("group_attribute.h5", "only a case has attributes",
         [](hid_t f) { test::put_attribute(f, "/first/inputs", "eps", 1.0); });
  broken("dataset_attribute.h5", "@unit",
         [](hid_t f) { test::put_attribute(f, "/first/inputs/x", "unit", std::string("m")); });
  broken("dtype.h5", "@dtype",
         [](hid_t f) { test::put_attribute(f, "/first/inputs/x", "dtype", std::string("float8")); });
  broken("huge.h5", "beyond 2^53",
         [](hid_t f) { test::put_dataset(f, "/first/y", H5T_STD_I64LE, {1}, {18014398509481984.0}); });
  broken("short.h5", "a number type of 2 bytes",
         [](hid_t f) { test::put_dataset(f, "/first/y", H5T_STD_I16LE, {1}, {1}); });

  std::ofstream(folder.file("text.h5")) << "not HDF5\n";
  expect_refused(folder.file("text.h5"), "not a readable HDF5 file");
  std::ofstream(folder.file("empty.h5")).flush();
  expect_refused(folder.file("empty.h5"), "not a readable HDF5 file");
  expect_refused(folder.file("missing.h5"), "not a readable HDF5 file");
}

bool within(std::vector<double> want, std::vector<double> got, double tolerance) {
  Comparison comparison;
  comparison.numbers("x", want, got, tolerance);
  return comparison.passed();
}

TEST(Comparison, HoldsSmallResultsToTheirOwnSize) {
  // The largest is 0.01, so every element may be off by a tenth of that and no more.
  EXPECT_TRUE(within({0.01, 0}, {0.01, 0.00099}, 0.1));
  EXPECT_FALSE(within({0.01, 0}, {0.01, 0.00101}, 0.1));
  EXPECT_FALSE(within({0.01, 0}, {0.0112, 0}, 0.1));
}

TEST(Comparison, IsRelativeAboveOneAndAbsoluteBelow) {
  EXPECT_TRUE(within({100, 0.5}, {109, 0.59}, 0.1));
  EXPECT_FALSE(within({100, 0.5}, {111, 0.5}, 0.1));
  EXPECT_FALSE(within({100, 0.5}, {100, 0.61}, 0.1));
}

TEST(Comparison, UsesOneAsScaleWhenAllIsZero) {
  EXPECT_TRUE(within({0, 0}, {0.09, 0}, 0.1));
  EXPECT_FALSE(within({0, 0}, {0.11, 0}, 0.1));
}

TEST(Comparison, TakesNanAndInfinityLiterally) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(within({nan, inf, -inf, 1}, {nan, inf, -inf, 1}, 0.1));
  EXPECT_FALSE(within({1}, {nan}, 0.1));
  EXPECT_FALSE(within({nan}, {1}, 0.1));
  EXPECT_FALSE(within({1}, {inf}, 0.1));
  EXPECT_FALSE(within({inf}, {-inf}, 0.1));
  EXPECT_FALSE(within({inf, 1}, {inf, 1.2}, 0.1));  // an infinity does not stretch the scale
}

TEST(Comparison, AsksForEqualityAtToleranceZero) {
  EXPECT_TRUE(within({3, 0}, {3, 0}, 0));
  EXPECT_FALSE(within({3}, {std::nextafter(3.0, 4.0)}, 0));
}

TEST(Comparison, FailsOnOtherCountsAndOnNothing) {
  EXPECT_FALSE(within({1, 2}, {1}, 0.1));
  EXPECT_FALSE(Comparison().passed());
  EXPECT_FALSE(within({}, {}, 0.1));
}

TEST(Comparison, NamesTheWorstElement) {
  Comparison comparison;
  comparison.numbers("grads/x", std::vector<double>{1, 2, 3}, std::vector<double>{1.01, 2.9, 3.5}, 0.1,
                     "channels last");
  comparison.strings("names", {"a", "b"}, {"a", "b"});
  EXPECT_FALSE(comparison.passed());
  EXPECT_EQ(comparison.compared(), 5u);
  const std::string line = comparison.summary();
  EXPECT_NE(line.find("2 of 5 values outside"), std::string::npos) << line;
  EXPECT_NE(line.find("grads/x[1] (channels last): want 2, got 2.9"), std::string::npos) << line;
}

TEST(Comparison, ComparesLists) {
  const auto same = [](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    Comparison comparison;
    comparison.strings("names", a, b);
    return comparison.passed();
  };
  EXPECT_TRUE(same({"a", "b"}, {"a", "b"}));
  EXPECT_FALSE(same({"a", "b"}, {"b", "a"}));
  EXPECT_FALSE(same({"a", "b"}, {"a"}));
  EXPECT_FALSE(same({"a"}, {"a", "b"}));
}

TEST(Comparison, TakesATolerancePerElement) {
  Comparison comparison;
  comparison.numbers("losses", std::vector<double>{1, 1}, std::vector<double>{1.05, 1.05},
                     std::vector<double>{0.01, 0.1});
  EXPECT_FALSE(comparison.passed());
  EXPECT_NE(comparison.summary().find("1 of 2 values outside"), std::string::npos);
}

}  // namespace
