// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/options.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "apex/core/device.hpp"
#include "apex/core/error.hpp"
#include "apex/core/program.hpp"

namespace apex::train {
namespace {

struct Parsed {
  TrainOptions options;
  std::string dir, arch = "resnet18";
  OptionSet set{"prog", "A program."};

  Parsed() {
    set.text("arch,a", arch, "model");
    declare(set, options);
    set.positional("DIR", dir, "data");
  }
  void parse(std::vector<const char*> words) {
    words.insert(words.begin(), "prog");
    set.parse(static_cast<int>(words.size()), words.data());
  }
};

std::string error_of(const std::vector<const char*>& words, bool checked = false) {
  Parsed p;
  try {
    p.parse(words);
    if (checked) check(p.set, p.options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

struct EnvironmentVariable {
  EnvironmentVariable(const char* n, const char* value) : name(n) { setenv(name, value, 1); }
  ~EnvironmentVariable() { unsetenv(name); }
  const char* name;
};

TEST(OptionSet, UnderscoreAndDashAreAlike) {
  Parsed p;
  p.parse({"--sync_bn", "data", "--batch_size=7", "--weight-decay", "0.5"});
  EXPECT_TRUE(p.options.sync_bn);
  EXPECT_EQ(p.options.batch_size, 7);
  EXPECT_EQ(p.options.weight_decay, 0.5);
  EXPECT_EQ(p.dir, "data");
}

TEST(OptionSet, AliasesAndShortForms) {
  Parsed p;
  p.parse({"--b", "3", "--learning-rate", "0.25", "--wd=0", "-j2", "-p", "5", "-e", "-a", "resnet50"});
  EXPECT_EQ(p.options.batch_size, 3);
  EXPECT_EQ(p.options.lr, 0.25);
  EXPECT_EQ(p.options.weight_decay, 0);
  EXPECT_EQ(p.options.workers, 2);
  EXPECT_EQ(p.options.print_freq, 5);
  EXPECT_TRUE(p.options.evaluate);
  EXPECT_EQ(p.arch, "resnet50");
}

TEST(OptionSet, CommandLineBeatsEnvironmentBeatsFile) {
  const std::string file = ::testing::TempDir() + "option_set_test.cfg";
  std::ofstream(file) << "# a comment\nbatch_size = 1\nlr = 2\n momentum = 0.25\ndeterministic = yes\n";
  const EnvironmentVariable b("APEX_OPT_BATCH_SIZE", "10"), lr("APEX_OPT_LR", "20");
  Parsed p;
  p.parse({"--config", file.c_str(), "--batch-size", "100"});
  EXPECT_EQ(p.options.batch_size, 100);
  EXPECT_EQ(p.options.lr, 20);
  EXPECT_EQ(p.options.momentum, 0.25);
  EXPECT_TRUE(p.options.deterministic);
  for (const auto& e : p.set.effective()) {
    if (e.name == "batch-size") {
      EXPECT_EQ(e.origin, "command line");
    }
    if (e.name == "lr") {
      EXPECT_EQ(e.origin, "environment");
    }
    if (e.name == "momentum") {
      EXPECT_EQ(e.origin, file);
    }
    if (e.name == "epochs") {
      EXPECT_EQ(e.origin, "default");
    }
  }
  std::remove(file.c_str());
}

TEST(OptionSet, RefusesWhatNobodyDeclared) {
  EXPECT_NE(error_of({"--no-such"}).find("--no-such"), std::string::npos);
  EXPECT_NE(error_of({"--batch", "3"}).find("--batch"), std::string::npos) << "a prefix must not be guessed";
  EXPECT_NE(error_of({"a", "b"}), "");
  EXPECT_NE(error_of({"--config", "/nonexistent/file"}).find("/nonexistent/file"), std::string::npos);
  const EnvironmentVariable typo("APEX_OPT_BATCHSIZE", "1");
  EXPECT_NE(error_of({}).find("APEX_OPT_BATCHSIZE"), std::string::npos);
}

/// A file for --config that is gone with its end.
struct ConfigFile {
  explicit ConfigFile(const std::string& text) : path(::testing::TempDir() + "option_set_file.cfg") {
    std::ofstream(path, std::ios::binary) << text;
  }
  ~ConfigFile() { std::remove(path.c_str()); }
  std::string path;
};

TEST(OptionSet, FileValuesMayStandInQuotes) {
  const ConfigFile file(
      "\xef\xbb\xbf# first line\r\n\r\nDIR = \"/data/a # b\"  # a comment\r\narch='resnet50'\r\n"
      "tensorboard = \"it's\"\nmetrics = it's # here\ncheckpoint_dir = \"\"\nlr = 2");
  Parsed p;
  p.parse({"--config", file.path.c_str()});
  EXPECT_EQ(p.dir, "/data/a # b");
  EXPECT_EQ(p.arch, "resnet50");
  EXPECT_EQ(p.options.tensorboard, "it's");
  EXPECT_EQ(p.options.checkpoint_dir, "");
  EXPECT_EQ(p.options.lr, 2) << "a last line without its end";
}

TEST(OptionSet, RefusesLinesOfAFileNamingThem) {
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"lr = 1\nbatchsize = 1\n", ":2: --batchsize is no option"},
                                                        {"config = other.cfg\n", ":1: --config can only stand"},
                                                        {"--lr = 1\n", "without dashes"},
                                                        {"help = yes\n", ":1: --help can only stand"},
                                                        {"\n[training]\nlr = 1\n", ":2: '[training]' is not"},
                                                        {"deterministic\n", ":1: 'deterministic' is not"},
                                                        {"= 1\n", ":1: '= 1' is not"},
                                                        {"lr = fast\n", "--lr: 'fast' is not a number"},
                                                        {"lr = 1\nlr = 2\n", "--lr is given twice"}}) {
    const ConfigFile file(text);
    const std::string said = error_of({"--config", file.path.c_str()});
    EXPECT_NE(said.find(part), std::string::npos) << text << said;
    EXPECT_NE(said.find(file.path), std::string::npos) << said;
  }
}

TEST(OptionSet, RefusesBadValuesNamingOptionAndValue) {
  for (const auto& [words, part] :
       std::vector<std::pair<std::vector<const char*>, const char*>>{{{"-b", "many"}, "--batch-size: 'many'"},
                                                                     {{"-b", "0"}, "--batch-size: 0"},
                                                                     {{"-b", "1.5"}, "--batch-size: '1.5'"},
                                                                     {{"-b", "99999999999999999999"}, "--batch-size"},
                                                                     {{"--lr", "nan"}, "--lr"},
                                                                     {{"--lr", "-1"}, "--lr: -1"},
                                                                     {{"--momentum", "1.5"}, "--momentum: 1.5"},
                                                                     {{"--progress", "loud"}, "--progress: 'loud'"},
                                                                     {{"-b", "1", "-b", "2"}, "given twice"},
                                                                     {{"--deterministic=maybe"}, "deterministic"},
                                                                     {{"-b"}, "batch-size"}}) {
    EXPECT_NE(error_of(words).find(part), std::string::npos) << error_of(words);
  }
}

TEST(TrainOptions, Intervals) {
  EXPECT_EQ(parse_interval("500").count, 500);
  EXPECT_FALSE(parse_interval("500").epochs);
  EXPECT_FALSE(parse_interval("5steps").epochs);
  EXPECT_TRUE(parse_interval("2epochs").epochs);
  EXPECT_EQ(parse_interval("2epochs").count, 2);
  EXPECT_EQ(parse_interval("0").count, 0);
  for (const char* bad : {"", "x", "-1", "5 steps", "5hours", "epochs"})
    EXPECT_THROW(parse_interval(bad), UsageError) << bad;
}

TEST(TrainOptions, RefusesWhatIsNotThereYet) {
  for (const char* level : {"O1", "O2", "O3", "O4", "O5"})
    EXPECT_NE(error_of({"--opt-level", level}, true).find(level), std::string::npos);
  EXPECT_EQ(error_of({"--opt-level", "O0"}, true), "");
  EXPECT_NE(error_of({"--sync_bn"}, true).find("sync_bn"), std::string::npos);
  EXPECT_NE(error_of({"--dtype", "i64"}, true).find("i64"), std::string::npos);
  EXPECT_NE(error_of({"--device", "tpu"}, true).find("tpu"), std::string::npos);
  EXPECT_NE(error_of({"--message-size", "5", "--bucket-cap-mb", "1"}, true), "");
  EXPECT_NE(error_of({"--loss-scale", "dynamic"}, true), "");
  if (!has_cuda) {
    EXPECT_NE(error_of({"--device", "cuda"}, true).find("CUDA"), std::string::npos);
  }
}

TEST(TrainOptions, LossScaleIsForF16) {
  TrainOptions options;
  EXPECT_EQ(loss_scale_of(options), 1);
  options.dtype = "f16";
  EXPECT_EQ(loss_scale_of(options), 1024);
  options.loss_scale = "128.0";
  EXPECT_EQ(loss_scale_of(options), 128);
  for (const char* bad : {"0", "-1", "inf", "nan", "2x", "dynamic"}) {
    options.loss_scale = bad;
    EXPECT_THROW(loss_scale_of(options), UsageError) << bad;
  }
  for (const char* dtype : {"f64", "f32", "bf16", "f16"}) EXPECT_EQ(error_of({"--dtype", dtype}, true), "") << dtype;
  EXPECT_EQ(error_of({"--dtype", "f16", "--loss-scale", "512"}, true), "");
  EXPECT_EQ(error_of({"--dtype", "bf16", "--loss-scale", "1.0"}, true), "");
  EXPECT_NE(error_of({"--dtype", "bf16", "--loss-scale", "512"}, true).find("f16"), std::string::npos);
  EXPECT_NE(error_of({"--cuda-graph", "--device", "cpu"}, true).find("--cuda-graph"), std::string::npos);
  EXPECT_NE(error_of({"--tf32", "--device", "cpu"}, true).find("--tf32"), std::string::npos);
  EXPECT_EQ(error_of({"--plan-cache", "none", "--device", "cpu"}, true), "");
  EXPECT_NE(error_of({"--plan-cache", ""}, true).find("--plan-cache"), std::string::npos);
  EXPECT_NE(error_of({"--plan-cache", "plans.bin", "--device", "cpu"}, true).find("--plan-cache"), std::string::npos);
  EXPECT_EQ(error_of({"--plan-cache", "auto", "--device", "cpu"}, true), "");
}

TEST(OptionSet, TheVersionComesBeforeEverythingElse) {
  Parsed p;
  p.parse({"--version", "--batch-size", "2"});
  EXPECT_EQ(p.set.text_wanted(), concat("prog ", version(), " (apex)\n"));
  for (const auto& e : p.set.effective()) EXPECT_NE(e.name, "version");
  Parsed none;
  none.parse({"--batch-size", "2"});
  EXPECT_EQ(none.set.text_wanted(), "");
}

TEST(OptionSet, HelpListsEveryOption) {
  Parsed p;
  p.parse({"--help", "--batch-size", "2"});
  ASSERT_TRUE(p.set.help_wanted());
  const std::string help = p.set.help();
  for (const auto& e : p.set.effective()) EXPECT_NE(help.find(e.name), std::string::npos) << e.name;
}

}  // namespace
}  // namespace apex::train
