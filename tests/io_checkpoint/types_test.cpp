// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// The values of every type, as h5dump and h5py read them without our code; and that a locale changes no file.
#include <gtest/gtest.h>
#include <mpi.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <locale>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sample_tree.hpp"
#include "support/tensors.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Values that a type holds exactly: zeros of both signs, the ends of its range, the smallest, the odd ones.
std::vector<double> values_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return {0.0, -0.0, 1.5, -0.1, 0x1p-1074, 0x1.fffffffffffffp1023, -kInfinity, kInfinity, kNan};
    case DType::f32: return {0.0, -0.0, 1.5, -0x1.99999ap-4, 0x1p-149, 0x1.fffffep127, -kInfinity, kInfinity, kNan};
    case DType::f16: return {0.0, -0.0, 1.5, -0x1.998p-4, 0x1p-24, 65504, -kInfinity, kInfinity, kNan};
    case DType::bf16: return {0.0, -0.0, 1.5, -0x1.9ap-4, 0x1p-133, 0x1.fep127, -kInfinity, kInfinity, kNan};
    case DType::i64: return {0, -1, 9007199254740992.0, -9223372036854775808.0};
    case DType::i32: return {0, -1, 2147483647, -2147483648.0};
    case DType::u8: return {0, 1, 128, 255};
    case DType::boolean: return {0, 1, 1, 0};
  }
  return {};
}

/// One number as the scripts print it too.
std::string text_of(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", v);
  return text.data();
}
std::string text_of(const std::vector<double>& values) {
  std::string out;
  for (const double v : values) out += (out.empty() ? "" : " ") + text_of(v);
  return out;
}

std::string output_of(const std::string& command) {
  std::string text;
  std::array<char, 4096> buffer{};
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) return {};
  while (std::fgets(buffer.data(), buffer.size(), pipe)) text += buffer.data();
  return pclose(pipe) == 0 ? text : std::string();
}

class Types : public ::testing::Test {
 protected:
  Types() : folder(concat("types_", getpid())) { folder.own(); }

  fs::path write() {
    io::Tree tree;
    for (const DType dtype : test::kAllTypes) {
      const auto values = values_of(dtype);
      tree.add(concat("types/", name_of(dtype)),
               test::from_list({static_cast<std::int64_t>(values.size())}, dtype, values));
    }
    return io::write_checkpoint(MPI_COMM_SELF, folder.path(), 1, tree).path;
  }

  test::Folder folder;
};

TEST_F(Types, OurReaderGivesTheValues) {
  const io::CheckpointFile file(write());
  for (const DType dtype : test::kAllTypes) {
    const Tensor t = file.read(concat("types/", name_of(dtype)));
    EXPECT_EQ(t.dtype(), dtype);
    EXPECT_EQ(text_of(test::to_f64(t)), text_of(values_of(dtype))) << name_of(dtype);
  }
}

TEST_F(Types, H5pyGivesTheValues) {
  if (output_of("/usr/bin/python3 -c 'import h5py; print(1)'").empty()) GTEST_SKIP() << "h5py is not installed";
  const auto file = write();
  const auto script = folder.path() / "read.py";
  test::write_bytes(script, R"(import h5py, sys
f = h5py.File(sys.argv[1], 'r')['types']
for name in ['f64', 'f32', 'f16', 'bf16', 'i64', 'i32', 'u8', 'bool']:
    d = f[name]
    print(name, d.dtype, *['%.17g' % float(v) for v in d[...]])
t = f['bf16'].id.get_type()
print(t.get_size(), t.get_precision(), t.get_fields(), t.get_ebias(), t.get_order() == h5py.h5t.ORDER_LE)
)");
  std::string expected;
  const std::array<const char*, 8> seen_as = {"float64", "float32", "float16", "float32",
                                              "int64",   "int32",   "uint8",   "bool"};
  for (std::size_t i = 0; i < seen_as.size(); ++i)
    expected += concat(name_of(test::kAllTypes[i]), ' ', seen_as[i], ' ', text_of(values_of(test::kAllTypes[i])), '\n');
  expected += "2 16 (15, 7, 8, 0, 7) 127 True\n";  // sign, exponent (at, bits), mantissa (at, bits); bias
  EXPECT_EQ(output_of("/usr/bin/python3 " + script.string() + ' ' + file.string()), expected);
}

TEST_F(Types, H5dumpGivesTheValues) {
  if (output_of("h5dump --version").empty()) GTEST_SKIP() << "hdf5-tools are not installed";
  const auto file = write();
  for (const DType dtype : test::kAllTypes) {
    SCOPED_TRACE(name_of(dtype));
    const std::string all =
        output_of(concat("h5dump -y -w 1000 -m %.17g -d /types/", name_of(dtype), ' ', file.string()));
    const auto begin = all.find("DATA {");
    ASSERT_NE(begin, std::string::npos) << all;
    std::string data = all.substr(begin + 6, all.find('}', begin) - begin - 6);
    for (const auto& [from, to] : {std::pair{"TRUE", "1"}, {"FALSE", "0"}, {",", " "}})
      for (auto at = data.find(from); at != data.npos; at = data.find(from))
        data.replace(at, std::string(from).size(), to);
    std::vector<double> got;
    std::istringstream words(data);
    for (std::string word; words >> word;) got.push_back(std::strtod(word.c_str(), nullptr));  // "-nan" too
    auto expected = values_of(dtype);
    EXPECT_EQ(text_of(got), text_of(expected)) << all;
    if (is_16bit(dtype)) {
      EXPECT_NE(all.find("16-bit little-endian floating-point"), std::string::npos) << all;
    }
  }
}

/// Digits in groups and a decimal comma, as de_DE has them.
class German : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST_F(Types, TheLocaleOfAProgramChangesNoFile) {
  const auto plain = test::read_bytes(write());
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new German));
  std::ostringstream check;
  check << 1234567;
  const auto german = test::read_bytes(write());
  const auto attempts = io::record_attempt(folder.path(), 1234567);
  const auto again = io::record_attempt(folder.path(), 1234567);
  const auto note = test::read_bytes(folder.path() / "ATTEMPTS");
  const auto opened = io::open_checkpoint(folder.path()).step();
  std::locale::global(before);
  EXPECT_EQ(check.str(), "1.234.567") << "the locale is in force";
  EXPECT_TRUE(plain == german);
  EXPECT_EQ(attempts.count, 1);
  EXPECT_EQ(again.count, 2);
  EXPECT_EQ(note, "start_step 1234567 count 2\n");
  EXPECT_EQ(opened, 1);
}

}  // namespace
}  // namespace apex
