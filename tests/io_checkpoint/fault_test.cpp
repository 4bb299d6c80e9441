// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Kills, stops and starves checkpoint_victim at every point of a write: the newest complete checkpoint always loads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "sample_tree.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Ended {
  int code = -1;       ///< exit code, or 128 + signal
  std::string output;  ///< stdout and stderr
  double seconds = 0;
};

/// A program of ours, in a process group of its own, with its output in a file.
class Program {
 public:
  Program(std::vector<std::string> words, const std::string& fault, const fs::path& output,
          rlim_t file_limit = RLIM_INFINITY)
      : output_(output), start_(Clock::now()) {
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    fs::remove(output);
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, 1);
      dup2(fd, 2);
      if (!fault.empty()) setenv("APEX_FAULT", fault.c_str(), 1);
      if (file_limit != RLIM_INFINITY) {
        const rlimit limit{file_limit, file_limit};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Program() {
    if (pid_ > 0) kill(-pid_, SIGKILL);
  }

  pid_t pid() const { return pid_; }
  Ended wait(double limit = 60) {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (seconds() > limit) {
        ADD_FAILURE() << "still running after " << limit << " s; output: " << test::read_bytes(output_);
        kill(-pid_, SIGKILL);
        waitpid(pid_, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    kill(-pid_, SIGKILL);  // a stopped rank would outlive its job
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), test::read_bytes(output_), seconds()};
  }
  /// Waits until the output holds `text`.
  bool says(const std::string& text, double limit = 30) const {
    while (seconds() < limit) {
      if (test::read_bytes(output_).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  std::string output() const { return test::read_bytes(output_); }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  fs::path output_;
  Clock::time_point start_;
  pid_t pid_ = -1;
};

class Faults : public ::testing::Test {
 protected:
  Faults() : folder(concat("faults_", getpid())), directory(folder.path() / "ckpt") {
    folder.own();
    fs::create_directories(directory);
    for (const auto& [key, value] : {std::pair{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                     {"OMPI_MCA_mpi_yield_when_idle", "1"},
                                     {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                     {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                     {"OMP_NUM_THREADS", "1"}})
      setenv(key, value, 1);
  }

  static std::vector<std::string> victim(int ranks, const fs::path& directory,
                                         const std::vector<std::string>& arguments) {
    std::vector<std::string> words;
    if (ranks > 1) words = {APEX_MPIEXEC, "-n", std::to_string(ranks)};
    words.insert(words.end(), {APEX_VICTIM, directory.string()});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  Ended run(int ranks, const std::vector<std::string>& arguments, const std::string& fault = {},
            rlim_t limit = RLIM_INFINITY) {
    return Program(victim(ranks, directory, arguments), fault, folder.path() / "output", limit).wait();
  }
  /// An earlier checkpoint, of step 1; made once and copied from then on.
  void save_first() {
    const auto original = folder.path() / "first";
    if (fs::exists(original)) {
      fs::copy(original, directory);
      return;
    }
    const auto ended = run(1, {"1", "1"});
    ASSERT_EQ(ended.code, 0) << ended.output;
    fs::copy(directory, original);
  }
  /// The command line of a process; nothing when it ends while it is read.
  static std::string command_line(const fs::path& process) {
    try {
      return test::read_bytes(process / "cmdline");
    } catch (const std::ios_base::failure&) {
      return {};
    }
  }
  /// Processes that still work for this test; those that are about to end get a moment.
  std::size_t processes_left() const {
    std::size_t n = 0;
    for (int i = 0; i < 100; ++i) {
      n = 0;
      std::error_code gone;
      for (const auto& e : fs::directory_iterator("/proc", gone))
        n += command_line(e.path()).find(directory.string()) != std::string::npos;
      if (n == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return n;
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> all;
    for (const auto& f : io::list_checkpoints(directory)) all.push_back(f.step);
    return all;
  }
  std::size_t temporaries() const {
    std::size_t n = 0;
    for (const auto& e : fs::directory_iterator(directory))
      n += e.path().filename().string().find(".tmp.") != std::string::npos;
    return n;
  }
  /// Whatever happened: every step file is complete, LATEST names one, and the next save works and cleans up.
  void expect_sound(std::int64_t at_least, int ranks = 1) {
    EXPECT_EQ(processes_left(), 0u);
    ASSERT_FALSE(steps().empty());
    for (const auto& f : io::list_checkpoints(directory)) {
      const io::CheckpointFile file(f.path);
      EXPECT_NO_THROW(file.verify()) << f.path;
      EXPECT_EQ(file.step(), f.step);
    }
    EXPECT_GE(io::open_checkpoint(directory).step(), at_least);
    EXPECT_TRUE(io::latest_checkpoint(directory)) << "LATEST names a file that is there";
    const auto next = io::open_checkpoint(directory).step() + 1;
    const auto ended = run(ranks, {std::to_string(next), "1"});
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(io::open_checkpoint(directory).step(), next);
    EXPECT_EQ(io::latest_checkpoint(directory)->filename(), io::list_checkpoints(directory).back().path.filename());
    EXPECT_EQ(temporaries(), 0u) << "what the dead left is gone";
  }

  test::Folder folder;
  fs::path directory;
};

const std::vector<std::string> kBeforeRename = {
    "before_create",   "after_create", "before_write",   "mid_write",    "before_fsync",       "after_fsync",
    "before_metadata", "mid_metadata", "after_metadata", "after_verify", "before_final_fsync", "before_rename"};
const std::vector<std::string> kAfterRename = {
    "after_rename", "after_directory_fsync", "before_latest", "mid_latest", "after_latest", "before_best", "mid_best",
    "after_best",   "before_prune",          "after_prune"};

TEST_F(Faults, KilledAtAnyPointTheNewestCompleteCheckpointLoads) {
  for (const auto& point : kBeforeRename) {
    SCOPED_TRACE(point);
    fs::remove_all(directory);
    save_first();
    const auto ended = run(1, {"2", "1"}, point);
    EXPECT_EQ(ended.code, 128 + SIGKILL) << "the point is passed; " << ended.output;
    EXPECT_EQ(steps(), std::vector<std::int64_t>{1});
    expect_sound(1);
  }
  for (const auto& point : kAfterRename) {
    SCOPED_TRACE(point);
    fs::remove_all(directory);
    save_first();
    const auto ended = run(1, {"2", "1"}, point);
    EXPECT_EQ(ended.code, 128 + SIGKILL) << "the point is passed; " << ended.output;
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
    expect_sound(2);
  }
}

TEST_F(Faults, ARankKilledInTheMiddleEndsTheJob) {
  for (const auto& fault : {"mid_write:1", "before_fsync:0", "after_fsync:1", "mid_metadata:0", "after_rename:0"}) {
    SCOPED_TRACE(fault);
    fs::remove_all(directory);
    save_first();
    const auto ended = run(2, {"2", "1", "4"}, fault);
    EXPECT_NE(ended.code, 0);
    EXPECT_LT(ended.seconds, 30);
    expect_sound(1, 2);
  }
}

TEST_F(Faults, ARequeuedJobCleansUpAfterItsFormerStart) {
  save_first();
  const auto run_as = [&](const std::string& restart, const std::string& fault) {
    return Program(
               {"env", "SLURM_JOB_ID=77", "SLURM_RESTART_COUNT=" + restart, APEX_VICTIM, directory.string(), "2", "1"},
               fault, folder.path() / "output")
        .wait();
  };
  EXPECT_EQ(run_as("1", "mid_write").code, 128 + SIGKILL);
  EXPECT_TRUE(fs::exists(directory / "step_00000002.h5.tmp.77.1"));
  EXPECT_EQ(run_as("2", "").code, 0);
  EXPECT_EQ(temporaries(), 0u);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
}

// At 50 random moments inside the write.
TEST_F(Faults, KilledAtRandomMomentsTheNewestCompleteCheckpointLoads) {
  save_first();
  std::mt19937 random(static_cast<unsigned>(getpid()));
  const bool has_h5dump = std::system("h5dump --version >/dev/null 2>&1") == 0;
  for (int round = 0; round < 50; ++round) {
    const auto next = io::open_checkpoint(directory).step() + 1;
    {
      Program program(victim(1, directory, {std::to_string(next), "1000", "8"}), {}, folder.path() / "output");
      ASSERT_TRUE(program.says("saved")) << program.output();
      std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(0, 120)(random)));
      kill(program.pid(), SIGKILL);
      program.wait();
    }
    const auto ended = Program({APEX_CKPT, "verify", directory.string()}, {}, folder.path() / "output").wait();
    EXPECT_EQ(ended.code, 0) << "a step file is complete or not there; " << ended.output;
    EXPECT_GE(io::open_checkpoint(directory).step(), next);
    if (has_h5dump) {
      const auto newest = io::list_checkpoints(directory).back().path.string();
      EXPECT_EQ(Program({"h5dump", "-H", newest}, {}, folder.path() / "output").wait().code, 0) << newest;
    }
  }
  expect_sound(1);
}

TEST_F(Faults, FailedCallsAreReportedAndTheOldCheckpointStays) {
  struct Case {
    std::string fault;
    int code;
    int ranks;
    bool renamed = false;  // the file was safe already when the call failed
  };
  const std::vector<Case> cases = {
      {"enospc@before_create", exit_code_of(Kind::exhausted), 1},
      {"eio@before_write", exit_code_of(Kind::data), 1},
      {"short@mid_write:1", exit_code_of(Kind::exhausted), 2},
      {"eio@before_fsync:1", exit_code_of(Kind::data), 2},
      {"enospc@before_metadata", exit_code_of(Kind::exhausted), 1},
      {"short@mid_metadata", exit_code_of(Kind::exhausted), 1},
      {"eio@before_final_fsync", exit_code_of(Kind::data), 1},
      {"eio@before_rename", exit_code_of(Kind::data), 1},
      {"eio@after_rename", exit_code_of(Kind::data), 1, true},
      {"short@before_latest", exit_code_of(Kind::exhausted), 1, true},
      {"eio@mid_latest", exit_code_of(Kind::data), 1, true},
      {"enospc@before_best", exit_code_of(Kind::exhausted), 1, true},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.fault);
    fs::remove_all(directory);
    save_first();
    const auto ended = run(c.ranks, {"2", "1", "4"}, c.fault);
    EXPECT_EQ(ended.code, c.code) << ended.output;
    EXPECT_EQ(ended.output.find("saved"), std::string::npos) << "a failed save is never called saved";
    EXPECT_NE(ended.output.find(directory.string()), std::string::npos) << "names the path: " << ended.output;
    EXPECT_EQ(steps(), (c.renamed ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1}));
    EXPECT_EQ(temporaries(), 0u) << "nothing half remains";
    expect_sound(1);
  }
}

TEST_F(Faults, ASaveThatFailedCanBeRepeatedInTheSameJob) {
  save_first();
  const auto ended = run(2, {"2", "2", "4", "60", "retry"}, "enospc@mid_write:1");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("failed: "), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("No space left on device"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("(rank 1)"), std::string::npos) << ended.output;
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3}));
  expect_sound(3);
}

TEST_F(Faults, AFileSizeLimitIsAnErrorAndNotASignal) {
  save_first();
  const auto ended = run(1, {"2", "1", "16"}, {}, 8 << 20);
  EXPECT_EQ(ended.code, exit_code_of(Kind::exhausted)) << ended.output;
  EXPECT_NE(ended.output.find("File too large"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find(" bytes"), std::string::npos) << ended.output;
  EXPECT_EQ(temporaries(), 0u);
  expect_sound(1);
}

TEST_F(Faults, ASmallDiskIsAnErrorAndTheOldCheckpointStays) {
  if (std::system("unshare -m true 2>/dev/null") != 0) GTEST_SKIP() << "may not mount a file system here";
  const auto run_on_small_disk = [&](const std::string& megabytes) {
    // The disk lives as long as the shell; what is left on it is copied out to be looked at.
    const std::string script =
        concat("mount -t tmpfs -o size=20m tmpfs ", directory.string(), " || exit 99; ", APEX_VICTIM, ' ',
               directory.string(), " 1 1 4 && ", APEX_VICTIM, ' ', directory.string(), " 2 1 ", megabytes,
               "; code=$?; cp -r ", directory.string(), ' ', (folder.path() / "copy").string(), "; exit $code");
    return Program({"unshare", "-m", "sh", "-c", script}, {}, folder.path() / "output").wait();
  };
  const auto ended = run_on_small_disk("30");
  if (ended.code == 99) GTEST_SKIP() << "may not mount a file system here";
  EXPECT_EQ(ended.code, exit_code_of(Kind::exhausted)) << ended.output;
  EXPECT_NE(ended.output.find("No space left on device"), std::string::npos) << ended.output;
  directory = folder.path() / "copy";
  EXPECT_EQ(temporaries(), 0u);
  EXPECT_EQ(io::open_checkpoint(directory).step(), 1);
}

// A rank that stops in the write: the others end with code 7 within the limit.
TEST_F(Faults, AStoppedRankEndsTheJobWithCodeSeven) {
  for (const auto& fault : {"stop@mid_write:1", "stop@before_rename:0"}) {
    SCOPED_TRACE(fault);
    fs::remove_all(directory);
    save_first();
    const auto ended = run(2, {"2", "1", "4", "3"}, fault);
    EXPECT_EQ(ended.code, exit_code::kCommunication) << ended.output;
    EXPECT_LT(ended.seconds, 20);
    EXPECT_NE(ended.output.find("writing the checkpoint of step 2"), std::string::npos) << ended.output;
    expect_sound(1);
  }
}

TEST_F(Faults, TheToolSaysWhatIsThere) {
  save_first();
  ASSERT_EQ(run(1, {"2", "1"}).code, 0);
  const auto tool = [&](std::vector<std::string> words) {
    words.insert(words.begin(), APEX_CKPT);
    return Program(words, {}, folder.path() / "output").wait();
  };
  const auto has = [](const Ended& ended, const std::string& part) {
    return ended.output.find(part) != std::string::npos;
  };
  const std::string one = directory / "step_00000001.h5", two = directory / "step_00000002.h5";
  EXPECT_EQ(tool({"--help"}).code, 0);
  for (const auto& words :
       std::vector<std::vector<std::string>>{{}, {"nonsense"}, {"ls"}, {"diff", one}, {"ls", one, two}, {"--oops"}})
    EXPECT_EQ(tool(words).code, exit_code::kUsage);
  EXPECT_EQ(tool({"ls", directory / "none"}).code, exit_code::kData);
  EXPECT_EQ(tool({"verify", folder.path()}).code, exit_code::kData) << "a directory without checkpoints";

  auto ended = tool({"ls", directory});
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(has(ended, "step_00000001.h5") && has(ended, "LATEST  BEST")) << ended.output;
  EXPECT_TRUE(has(tool({"ls", two}), "/sampler/small7  f32 [107]"));
  ended = tool({"show", directory});
  EXPECT_TRUE(has(ended, "step = 2") && has(ended, "format = \"apex-checkpoint\"")) << ended.output;
  EXPECT_TRUE(has(tool({"show", two, "/sampler/small3"}), "f32 [103], 412 B"));
  EXPECT_EQ(tool({"show", two, "/none"}).code, exit_code::kData);
  EXPECT_EQ(tool({"verify", directory}).code, 0);

  EXPECT_EQ(tool({"diff", one, one}).code, 0);
  ended = tool({"diff", one, two});
  EXPECT_EQ(ended.code, 1);
  EXPECT_TRUE(has(ended, "/: 1 of ") || has(ended, "/: 2 of ")) << ended.output;
  EXPECT_TRUE(has(ended, "/sampler: bit-identical (41 datasets, 0 attributes)")) << ended.output;

  auto bytes = test::read_bytes(two);
  bytes.back() ^= 1;
  test::write_bytes(two, bytes);
  ended = tool({"verify", directory});
  EXPECT_EQ(ended.code, exit_code::kDamaged);
  EXPECT_TRUE(has(ended, "ok       " + one) && has(ended, "DAMAGED  " + two)) << ended.output;
  EXPECT_EQ(tool({"diff", one, two}).code, exit_code::kDamaged);
  EXPECT_EQ(tool({"show", two}).code, 0) << "its metadata are whole";
  test::write_bytes(two, "not HDF5 at all");
  EXPECT_EQ(tool({"show", two}).code, exit_code::kDamaged);
  ended = tool({"ls", directory});
  EXPECT_EQ(ended.code, exit_code::kDamaged);
  EXPECT_TRUE(has(ended, "damaged")) << ended.output;
}

}  // namespace
}  // namespace apex
