// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Disks that fail, and disks that lie, below the library: whatever happens, what is called saved is whole.
#include <gtest/gtest.h>

#include "sample_tree.hpp"
#include "support/subprocess.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;

class BadDisk : public ::testing::Test {
 protected:
  BadDisk() : directory(folder.path() / "ck") {}

  /// Saves one step on `ranks` ranks whose system misbehaves as `how` says.
  test::Subprocess& save(int step, const std::string& how, int ranks = 1, const char* mode = "full") {
    std::vector<std::string> command;
    if (ranks > 1) command = {APEX_MPIEXEC, "-n", std::to_string(ranks)};
    command.insert(command.end(), {"env", std::string("LD_PRELOAD=") + APEX_BAD_SYSTEM, "BAD_SYSTEM=" + how,
                                   APEX_VICTIM, directory.string(), std::to_string(step), "1", "1", "60", mode});
    process = std::make_unique<test::Subprocess>(command);
    EXPECT_TRUE(process->finish(60)) << process->output();
    return *process;
  }
  bool says(const std::string& part) const { return process->output().find(part) != std::string::npos; }
  std::size_t temporaries() const {
    std::size_t n = 0;
    for (const auto& e : fs::directory_iterator(directory))
      n += e.path().filename().string().find(".tmp.") != std::string::npos;
    return n;
  }

  test::TemporaryFolder folder;
  fs::path directory;
  std::unique_ptr<test::Subprocess> process;
};

TEST_F(BadDisk, FailuresAreReportedAndTheOldCheckpointStays) {
  struct Case {
    const char* how;
    Kind kind;
    const char* says;
  };
  for (const int ranks : {1, 2}) {
    for (const auto& c : {Case{"write_eio,step_", Kind::data, "Input/output error"},
                          Case{"write_enospc,step_", Kind::exhausted, "No space left on device"},
                          Case{"write_lost,step_", Kind::damaged, "step_00000002.h5"},
                          Case{"write_wrong,step_", Kind::damaged, "step_00000002.h5"},
                          Case{"fsync_eio,step_", Kind::data, "cannot fsync: Input/output error"},
                          Case{"close_eio,step_", Kind::data, "cannot close: Input/output error"},
                          Case{"rename_eio,step_", Kind::data, "cannot rename to step_00000002.h5"},
                          Case{"reserve_enospc,step_", Kind::exhausted, "cannot reserve"}}) {
      SCOPED_TRACE(concat(c.how, " on ", ranks, " rank(s)"));
      fs::remove_all(directory);
      ASSERT_EQ(save(1, "nothing", ranks).exit_code(), 0) << process->output();
      EXPECT_EQ(save(2, c.how, ranks).exit_code(), exit_code_of(c.kind)) << process->output();
      EXPECT_FALSE(says("saved 2")) << "a failed save is never called saved";
      EXPECT_TRUE(says(c.says) && says(directory.string())) << process->output();
      EXPECT_EQ(io::list_checkpoints(directory).size(), 1u);
      EXPECT_EQ(temporaries(), 0u) << "nothing half remains";
      EXPECT_EQ(io::open_checkpoint(directory).step(), 1);
      EXPECT_EQ(io::latest_checkpoint(directory), directory / "step_00000001.h5");
    }
  }
}

// Only a sample is read back unless asked: what it misses is found when the file is opened.
TEST_F(BadDisk, ALieThatTheSampleMissesIsFoundOnLoading) {
  ASSERT_EQ(save(1, "nothing").exit_code(), 0) << process->output();
  ASSERT_EQ(save(2, "write_wrong,step_", 1, "sample").exit_code(), 0) << process->output();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(io::open_checkpoint(directory).step(), 1);
  const auto warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("step_00000002.h5: damaged: dataset '/sampler/"), std::string::npos) << warning;
  EXPECT_NE(warning.find("taking the older"), std::string::npos) << warning;
}

TEST_F(BadDisk, WhatIsUnusualButLegalWorks) {
  ASSERT_EQ(save(1, "nothing").exit_code(), 0) << process->output();
  const auto bytes = test::read_bytes(directory / "step_00000001.h5");
  for (const auto* how : {"write_short,step_", "write_short,LATEST", "no_fallocate"}) {
    SCOPED_TRACE(how);
    fs::remove_all(directory);
    ASSERT_EQ(save(1, how, 1).exit_code(), 0) << process->output();
    EXPECT_TRUE(test::read_bytes(directory / "step_00000001.h5") == bytes);
    EXPECT_EQ(io::latest_checkpoint(directory), directory / "step_00000001.h5");
  }
}

// The file is safe before the note is written; a note that fails is reported all the same.
TEST_F(BadDisk, ANoteThatFailsIsReported) {
  for (const auto* how : {"write_enospc,LATEST", "fsync_eio,LATEST", "rename_eio,LATEST"}) {
    SCOPED_TRACE(how);
    fs::remove_all(directory);
    ASSERT_EQ(save(1, "nothing").exit_code(), 0) << process->output();
    EXPECT_NE(save(2, how).exit_code(), 0);
    EXPECT_TRUE(says("LATEST")) << process->output();
    EXPECT_EQ(io::open_checkpoint(directory).step(), 2);
    EXPECT_EQ(io::latest_checkpoint(directory), directory / "step_00000001.h5") << "the old note is whole";
    EXPECT_EQ(temporaries(), 0u);
  }
}

}  // namespace
}  // namespace apex
