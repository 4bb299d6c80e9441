// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_ckpt as its users start it. Run as one process.
#include <gtest/gtest.h>
#include <mpi.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "sample_tree.hpp"
#include "support/subprocess.hpp"
#include "support/tensors.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Ended {
  int code;
  std::string output;
  bool has(const std::string& part) const { return output.find(part) != std::string::npos; }
};

Ended start(const std::vector<std::string>& command) {
  test::Subprocess process(command);
  EXPECT_TRUE(process.finish(30)) << command.back() << " still runs: " << process.output();
  return {process.exit_code(), process.output()};
}
Ended tool(std::vector<std::string> words) {
  words.insert(words.begin(), APEX_CKPT);
  return start(words);
}
json document(const std::vector<std::string>& words, int code) {
  const auto ended = tool(words);
  EXPECT_EQ(ended.code, code) << ended.output;
  return json::parse(ended.output);
}

/// A tree whose values the test knows; `shift` moves one weight.
io::Tree tree(double shift = 0) {
  io::Tree t;
  t.group("")["epoch"] = std::int64_t{3};
  t.add("model/weight", test::from_list({2, 3}, DType::f32, {1, -2, 3, 4, 5, 7 + shift}));
  t.add("model/half", test::from_list({3}, DType::f16, {0.5, std::numeric_limits<double>::infinity(), -1.5}));
  t.add("model/steps", test::from_list({2}, DType::i64, {9007199254740992.0, -5}));
  t.add("model/empty", test::from_list({0, 4}, DType::f32, {}));
  t.add("optimizer/0/state/weight/momentum_buffer", test::from_list({2}, DType::f64, {0.25, 0.75}));
  t.add("names", std::vector<std::string>{"a", "b"});
  t.group("scheduler")["lr"] = 0.1 + shift;
  t.group("metrics")["saved_at"] = std::string(shift == 0 ? "today" : "later");
  return t;
}

class Tool : public ::testing::Test {
 protected:
  Tool() : folder(concat("tool_", getpid())), directory(folder.path() / "ck") { folder.own(); }
  fs::path save(std::int64_t step, const io::Tree& what, bool best = false) {
    return io::write_checkpoint(MPI_COMM_SELF, directory, step, what, {.best = best}).path;
  }
  static void flip(const fs::path& file, std::size_t from_end) {
    auto bytes = test::read_bytes(file);
    bytes[bytes.size() - from_end] ^= 1;
    test::write_bytes(file, bytes);
  }
  test::Folder folder;
  fs::path directory;
};

TEST_F(Tool, UsageIsTwoAndNamesTheMistake) {
  const auto file = save(1, tree()).string();
  const auto refused = [&](const std::vector<std::string>& words, const std::string& part) {
    const auto ended = tool(words);
    EXPECT_EQ(ended.code, exit_code::kUsage) << ended.output;
    EXPECT_TRUE(ended.has(part)) << ended.output;
    EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << "one line: " << ended.output;
  };
  refused({}, "a command is missing");
  refused({"list", file}, "unknown command 'list'");
  refused({"diff", file}, "an argument is missing");
  refused({"show", file, "--group", "model", "extra"}, "too many arguments");
  refused({"diff", file, file, "--rtol", "much"}, "rtol");
  refused({"diff", file, file, "--atol", "-1"}, "--atol must be a number of at least 0");
  refused({"diff", file, file, "--rtol", "nan"}, "--rtol must be");
  refused({"ls", file, "--stats"}, "--stats is an option of show");
  refused({"show", file, "--all"}, "--all is an option of verify");
  refused({"ls", file, "--jso"}, "--jso");
  const auto help = tool({"diff", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"ls DIR", "--group", "--stats", "--all", "--atol", "--ignore", "--json", "Exit codes"})
    EXPECT_TRUE(help.has(word)) << word;
}

TEST_F(Tool, ListsADirectory) {
  save(1, tree(), true);
  const auto two = save(2, tree());
  auto listed = document({"ls", directory, "--json"}, 0);
  ASSERT_EQ(listed["checkpoints"].size(), 2u);
  EXPECT_EQ(listed["checkpoints"][0]["step"], 1);
  EXPECT_EQ(listed["checkpoints"][0]["epoch"], 3);
  EXPECT_EQ(listed["checkpoints"][0]["best"], true);
  EXPECT_EQ(listed["checkpoints"][0]["latest"], false);
  EXPECT_EQ(listed["checkpoints"][1]["bytes"], fs::file_size(two));
  EXPECT_EQ(listed["checkpoints"][1]["complete"], true);
  EXPECT_EQ(listed["checkpoints"][1]["latest"], true);
  auto text = tool({"ls", directory});
  EXPECT_TRUE(text.has("epoch    3") && text.has("complete  BEST") && text.has("complete  LATEST")) << text.output;
  fs::resize_file(two, fs::file_size(two) - 1);
  listed = document({"ls", directory, "--json"}, exit_code::kDamaged);
  EXPECT_EQ(listed["checkpoints"][0]["complete"], true);
  EXPECT_EQ(listed["checkpoints"][1]["complete"], false);
  EXPECT_NE(listed["checkpoints"][1]["problem"].get<std::string>().find("truncated"), std::string::npos);
}

TEST_F(Tool, ShowsShapesHashesAndStatistics) {
  const auto file = save(7, tree());
  const auto all = document({"show", file, "--stats", "--json"}, 0);
  EXPECT_EQ(all["step"], 7);
  EXPECT_EQ(all["groups"]["/"]["epoch"], 3);
  EXPECT_EQ(all["groups"]["/scheduler"]["lr"], 0.1);
  std::map<std::string, json> by_path;
  for (const auto& d : all["datasets"]) by_path[d["path"]] = d;
  const auto& weight = by_path.at("/model/weight");
  EXPECT_EQ(weight["dtype"], "f32");
  EXPECT_EQ(weight["shape"], (json{2, 3}));
  EXPECT_EQ(weight["stats"], (json{{"min", -2.0}, {"max", 7.0}, {"mean", 3.0}, {"not_finite", 0}}));
  char hash[20];
  std::snprintf(hash, sizeof hash, "%016llx",
                static_cast<unsigned long long>(io::CheckpointFile(file).datasets().at("model/weight").xxh64));
  EXPECT_EQ(weight["xxh64"], hash);
  EXPECT_EQ(by_path.at("/model/half")["stats"], (json{{"min", -1.5}, {"max", 0.5}, {"mean", -0.5}, {"not_finite", 1}}));
  EXPECT_EQ(by_path.at("/model/empty")["stats"]["min"], nullptr);
  EXPECT_FALSE(by_path.at("/names").contains("stats"));

  auto text = tool({"show", file, "--group", "/model/", "--stats"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(text.has(concat("/model/weight  f32 [2, 3]  xxh64 ", hash, "  min -2  max 7  mean 3\n"))) << text.output;
  EXPECT_TRUE(text.has("min -1.5  max 0.5  mean -0.5  1 not finite\n")) << text.output;
  EXPECT_FALSE(text.has("momentum_buffer")) << text.output;
  text = tool({"show", directory / "LATEST", "names"});
  EXPECT_TRUE(text.has("[1] b")) << text.output;
  EXPECT_EQ(tool({"show", file, "--group", "none"}).code, exit_code::kData);
  EXPECT_EQ(tool({"show", directory / "BEST"}).code, exit_code::kData) << "there is no best one";

  flip(file, 1);  // a byte of the last dataset: its statistics would lie
  EXPECT_EQ(tool({"show", file, "--stats"}).code, exit_code::kDamaged);
}

TEST_F(Tool, VerifyNamesWhatIsDamaged) {
  const auto one = save(1, tree()), two = save(2, tree());
  flip(two, 1);   // the last dataset in order of path
  flip(two, 60);  // and one before it
  auto first = document({"verify", directory, "--json"}, exit_code::kDamaged);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0]["ok"], true);
  EXPECT_EQ(first[0]["datasets"], 6);
  EXPECT_EQ(first[1]["ok"], false);
  EXPECT_EQ(first[1]["damaged"].size(), 1u);
  const auto all = document({"verify", two, "--all", "--json"}, exit_code::kDamaged);
  EXPECT_EQ(all[0]["damaged"].size(), 2u) << all;
  EXPECT_EQ(all[0]["damaged"][1], "/optimizer/0/state/weight/momentum_buffer");
  const auto text = tool({"verify", two, one});
  EXPECT_EQ(text.code, exit_code::kDamaged);
  EXPECT_TRUE(text.has("dataset '/") && text.has("ok       " + one.string())) << text.output;
  const auto missing = tool({"verify", one, directory / "none.h5"});
  EXPECT_EQ(missing.code, exit_code::kData);
  EXPECT_TRUE(missing.has("MISSING  " + (directory / "none.h5").string()) && !missing.has("DAMAGED")) << missing.output;
}

/// Of a directory show takes what a resume would take; of a file it shows what it reads.
TEST_F(Tool, ShowsTheNewestGoodOneOfADirectory) {
  save(1, tree());
  const auto two = save(2, tree());
  EXPECT_EQ(document({"show", directory, "--json"}, 0)["step"], 2);
  flip(two, 1);
  const auto page = tool({"show", directory});
  EXPECT_EQ(page.code, 0) << page.output;
  EXPECT_TRUE(page.has("step = 1") && page.has("taking the older")) << page.output;
  EXPECT_TRUE(tool({"show", two}).has("step = 2"));
  flip(save(1, tree(0.5)), 1);
  EXPECT_EQ(tool({"show", directory}).code, exit_code::kDamaged);
}

TEST_F(Tool, SaysItsVersion) {
  const auto said = tool({"--version"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(said.output.starts_with("apex_ckpt ")) << said.output;
}

TEST_F(Tool, DiffFindsEveryKindOfDifference) {
  const auto a = save(1, tree()).string();
  auto other = tree(0.5);
  other.add("model/extra", test::from_list({1}, DType::f32, {1}));
  const auto b = io::write_checkpoint(MPI_COMM_SELF, folder.path() / "b", 1, other).path.string();
  auto found = document({"diff", a, b, "--json"}, 1);
  EXPECT_EQ(found["equal"], false);
  std::map<std::string, json> groups;
  for (const auto& g : found["groups"]) groups[g["group"]] = g;
  EXPECT_EQ(groups.at("/optimizer")["equal"], true);
  EXPECT_EQ(groups.at("/metrics")["may_differ"], true);
  EXPECT_EQ(groups.at("/metrics")["equal"], false);
  EXPECT_EQ(groups.at("/model")["largest_difference"], 0.5);
  EXPECT_EQ(groups.at("/model")["largest_difference_at"], "/model/weight");
  EXPECT_EQ(groups.at("/model")["differences"],
            (json{"/model/extra is only in the second", "/model/weight: 1 of 6 values differ, by at most 0.5"}));
  EXPECT_EQ(groups.at("/scheduler")["differences"], (json{"/scheduler@lr: 0.1 and 0.6"}));

  EXPECT_EQ(tool({"diff", a, b, "--ignore", "/model/extra"}).code, 1);
  EXPECT_EQ(tool({"diff", a, b, "--ignore", "/model", "--ignore", "scheduler/"}).code, 0);
  EXPECT_EQ(tool({"diff", a, b, "--ignore", "mod", "--ignore", "scheduler"}).code, 1) << "whole names only";
  auto text = tool({"diff", a, b, "--ignore", "/model/extra", "--atol", "0.5"});
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(
      text.has("/model: equal within the tolerance, 1 of 4 datasets not in all bits, largest difference 0.5 in "
               "/model/weight"))
      << text.output;
  EXPECT_EQ(tool({"diff", a, b, "--ignore", "/model/extra", "--atol", "0.499"}).code, 1);
  EXPECT_EQ(tool({"diff", a, b, "--ignore", "/model/extra", "--ignore", "scheduler", "--rtol", "0.07"}).code, 0);
  EXPECT_EQ(tool({"diff", a, b, "--ignore", "/model/extra", "--ignore", "scheduler", "--rtol", "0.06"}).code, 1);

  auto third = tree();
  third.group("")["epoch"] = std::int64_t{4};
  const auto c = io::write_checkpoint(MPI_COMM_SELF, folder.path() / "c", 1, third).path.string();
  EXPECT_EQ(tool({"diff", a, c}).code, 1);
  EXPECT_EQ(tool({"diff", a, c, "--ignore", "/"}).code, 0);
}

TEST_F(Tool, DiffKnowsTypesShapesNansAndZeros) {
  const auto with = [&](const std::string& name, const Tensor& t) {
    io::Tree only;
    only.add("x", t);
    return io::write_checkpoint(MPI_COMM_SELF, folder.path() / name, 1, only).path.string();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const auto f32 = with("a", test::from_list({3}, DType::f32, {0.0, nan, 1}));
  const auto negative = with("b", test::from_list({3}, DType::f32, {-0.0, nan, 1}));
  const auto f64 = with("c", test::from_list({3}, DType::f64, {0.0, nan, 1}));
  const auto row = with("d", test::from_list({1, 3}, DType::f32, {0.0, nan, 1}));
  const auto infinite = with("e", test::from_list({3}, DType::f32, {0.0, nan, infinity}));
  const auto number = with("f", test::from_list({3}, DType::f32, {0.0, 2, 1}));
  EXPECT_TRUE(tool({"diff", f32, negative}).has("equal values of other bits"));
  EXPECT_EQ(tool({"diff", f32, negative, "--atol", "0"}).code, 0);
  EXPECT_TRUE(tool({"diff", f32, f64, "--atol", "1"}).has("/x: f32 [3] and f64 [3]"));
  EXPECT_TRUE(tool({"diff", f32, row}).has("/x: f32 [3] and f32 [1, 3]"));
  EXPECT_EQ(tool({"diff", f32, infinite, "--atol", "1e300", "--rtol", "1"}).code, 1) << "infinity is near nothing";
  EXPECT_TRUE(tool({"diff", f32, number, "--atol", "10"}).has("1 of 3 values differ, by at most inf"));
  const auto large = with("g", test::from_list({1}, DType::i64, {9223372036854774784.0}));
  const auto small = with("h", test::from_list({1}, DType::i64, {-9223372036854775808.0}));
  EXPECT_EQ(document({"diff", large, small, "--json"}, 1)["groups"][0]["largest_difference"], 18446744073709550592.0);
}

TEST_F(Tool, DamagedFilesEndWithFiveAndOneLine) {
  const auto good = save(1, tree());
  const auto bytes = test::read_bytes(good);
  std::string version = bytes;
  version[std::string("apex-checkpoint ").size()] = '2';
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{{"empty", ""},
                                                                                   {"text", "hello\n"},
                                                                                   {"cut", bytes.substr(0, 3000)},
                                                                                   {"hdf5", bytes.substr(512)},
                                                                                   {"version", version}}) {
    const auto bad = (folder.path() / (name + ".h5")).string();
    test::write_bytes(bad, text);
    for (const auto& words : std::vector<std::vector<std::string>>{{"ls", bad},
                                                                   {"show", bad},
                                                                   {"show", bad, "--stats", "--json"},
                                                                   {"diff", good, bad},
                                                                   {"diff", bad, good}}) {
      const auto ended = tool(words);
      EXPECT_EQ(ended.code, exit_code::kDamaged) << ended.output;
      EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << ended.output;
      EXPECT_TRUE(ended.has(bad)) << ended.output;
    }
    EXPECT_EQ(tool({"verify", bad}).code, exit_code::kDamaged);
  }
}

TEST_F(Tool, ClosedAndFullOutputs) {
  const auto file = save(1, tree()).string();
  const auto bytes = test::read_bytes(file);
  const std::string command = std::string(APEX_CKPT) + " verify " + file;
  EXPECT_EQ(start({"sh", "-c", command + " >&-"}).code, 0);
  EXPECT_EQ(start({"sh", "-c", command + " >&- 2>&- <&-"}).code, 0);
  EXPECT_TRUE(test::read_bytes(file) == bytes) << "no output went into the file";
  const auto full = start({"sh", "-c", command + " >/dev/full"});
  EXPECT_EQ(full.code, exit_code::kMemory);
  EXPECT_TRUE(full.has("output cannot be written")) << full.output;
}

}  // namespace
}  // namespace apex
