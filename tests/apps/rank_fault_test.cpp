// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What imagenet_train does when a rank dies, stops, or was started unlike the others: fault matrix rows 1, 14, 15, 17.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "apex/io/image/image.hpp"
#include "runs.hpp"

namespace apex::test {
namespace {

using Words = std::vector<std::string>;

/// One job of a program and arguments for each rank. Shared-memory files of MPI go to a folder of the test's own.
class MixedJob {
 public:
  explicit MixedJob(const std::vector<Words>& ranks, const Words& environment = {})
      : process_(command(ranks), with_shm(environment)) {}
  ~MixedJob() {
    for (const pid_t pid : seen_)  // a failed test must not leave a stopped process
      if (process_exists(pid)) ::kill(pid, SIGKILL);
  }

  /// The process ids of the ranks: mpiexec's children that run the program.
  std::vector<pid_t> ranks() {
    seen_.clear();
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "stat");
      std::string text((std::istreambuf_iterator<char>(file)), {});
      const auto open = text.find('('), close = text.rfind(')');
      if (close == std::string::npos) continue;
      int parent = 0;
      char state = 0;
      std::istringstream(text.substr(close + 1)) >> state >> parent;
      if (parent == process_.pid() && text.substr(open + 1, close - open - 1) == "imagenet_train")
        seen_.push_back(std::stoi(name));
    }
    std::sort(seen_.begin(), seen_.end());
    return seen_;
  }
  bool reaches_step(const fs::path& metrics, std::int64_t step) {
    return process_.read_until([&](const std::string&) { return TrainRun::last_step(metrics) >= step; }, 60);
  }
  bool finish(double seconds) {
    const bool ended = process_.finish(seconds);
    for (int i = 0; i < 100 && survivors() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return ended;
  }
  int survivors() const {
    return static_cast<int>(std::count_if(seen_.begin(), seen_.end(), [](pid_t p) { return process_exists(p); }));
  }
  int code() const { return process_.exit_code(); }
  const std::string& output() const { return process_.output(); }
  int lines_of_ours() const {
    int n = 0;
    std::istringstream lines(output());
    for (std::string line; std::getline(lines, line);) n += line.starts_with("apex: ");
    return n;
  }

 private:
  static Words command(const std::vector<Words>& ranks) {
    Words out = {APEX_MPIEXEC};
    for (const Words& rank : ranks) {
      if (out.size() > 1) out.push_back(":");
      out.insert(out.end(), {"-n", "1"});
      out.insert(out.end(), rank.begin(), rank.end());
    }
    return out;
  }
  Words with_shm(Words environment) const {
    environment.insert(environment.end(), {"APEX_OPT_DEVICE=cpu", "OMP_NUM_THREADS=1",
                                           "OMPI_MCA_btl_vader_backing_directory=" + shm_.path().string()});
    return environment;
  }

  TemporaryFolder shm_{"/dev/shm"};
  Subprocess process_;
  std::vector<pid_t> seen_;
};

#define EXPECT_SAYS(job, words)                                                                            \
  EXPECT_NE((job).output().find(words), std::string::npos) << "should say: " << (words) << "\nbut said:\n" \
                                                           << (job).output()

Words train(Words arguments, const std::string& program = APEX_IMAGENET_TRAIN) {
  arguments.insert(arguments.begin(), program);
  return arguments;
}

Words short_run(const fs::path& directory, Words more = {}) {
  Words out = {"--synthetic-size", "144", "-b", "4", "--epochs", "2", "--checkpoint-every", "5steps"};
  out.insert(out.end(), more.begin(), more.end());
  return tiny(directory, out);
}

/// Nothing was trained or saved.
void expect_no_step(const fs::path& directory) {
  EXPECT_EQ(TrainRun::last_step(directory / "metrics.jsonl"), 0);
  EXPECT_TRUE(!fs::exists(directory) || io::list_checkpoints(directory).empty());
}

// Fault matrix 1
TEST(TrainFaults, AKilledRankEndsTheJobAndCostsOnlyTheStepsSinceTheCheckpoint) {
  const TemporaryFolder folder;
  const auto whole = folder.path() / "whole", broken = folder.path() / "broken";
  TrainRun unbroken(3, short_run(whole));
  ASSERT_EQ(unbroken.finish().code(), 0) << unbroken.output();
  {
    MixedJob job(std::vector<Words>(3, train(short_run(broken))), {"APEX_READ_DELAY_MS=40"});
    ASSERT_TRUE(job.reaches_step(broken / "metrics.jsonl", 12)) << job.output();
    const auto ranks = job.ranks();
    ASSERT_EQ(ranks.size(), 3u) << job.output();
    ::kill(ranks[1], SIGKILL);
    ASSERT_TRUE(job.finish(10)) << job.output();
    EXPECT_NE(job.code(), 0);
    EXPECT_EQ(job.survivors(), 0);
  }
  const io::CheckpointFile last(newest(broken));
  EXPECT_GE(last.step(), 10);
  EXPECT_EQ(last.step() % 5, 0);
  TrainRun again(3, short_run(broken, {"--resume", "auto"}));
  ASSERT_EQ(again.finish().code(), 0) << again.output();
  EXPECT_EQ(difference(newest(whole), newest(broken)), "");
  // The curve: of a step that was made twice, the later record counts.
  std::map<std::int64_t, double> curve;
  for (const auto& r : records(broken / "metrics.jsonl", "train"))
    curve[r["step"].get<std::int64_t>()] = r["loss"].get<double>();
  const auto wanted = losses(whole / "metrics.jsonl");
  ASSERT_EQ(curve.size(), wanted.size());
  for (std::size_t k = 0; k < wanted.size(); ++k) EXPECT_EQ(curve[static_cast<std::int64_t>(k) + 1], wanted[k]) << k;
}

// Fault matrix 14
TEST(TrainFaults, ALaunchThatFellApartStopsAtOnce) {
  const TemporaryFolder folder;
  for (const char* announced : {"SLURM_STEP_NUM_TASKS=4", "PMI_SIZE=4"}) {
    Subprocess alone(train(short_run(folder.path() / "ck")), {announced, "APEX_OPT_DEVICE=cpu"});
    ASSERT_TRUE(alone.finish(10)) << announced;
    EXPECT_EQ(alone.exit_code(), 3) << announced << '\n' << alone.output();
    EXPECT_NE(alone.output().find("srun --mpi=pmix"), std::string::npos) << alone.output();
    EXPECT_EQ(std::count(alone.output().begin(), alone.output().end(), '\n'), 1) << alone.output();
    expect_no_step(folder.path() / "ck");
  }
}

// Fault matrix 15
TEST(TrainFaults, OtherOptionsAreNamed) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  MixedJob two(
      {train(short_run(ck, {"--lr", "0.1", "--seed", "1"})), train(short_run(ck, {"--lr", "0.2", "--seed", "7"}))});
  ASSERT_TRUE(two.finish(20)) << two.output();
  EXPECT_EQ(two.code(), 2) << two.output();
  EXPECT_SAYS(
      two, "ranks were started differently: --lr is 0.1 on rank 0, 0.2 on rank 1; --seed is 1 on rank 0, 7 on rank 1");
  EXPECT_EQ(two.lines_of_ours(), 1) << two.output();
  expect_no_step(ck);

  const auto usual = train(short_run(ck)), other = train(short_run(ck, {"--weight-decay", "0.5"}));
  MixedJob four({usual, other, usual, other});
  ASSERT_TRUE(four.finish(20)) << four.output();
  EXPECT_EQ(four.code(), 2) << four.output();
  EXPECT_SAYS(four, " on ranks 0, 2, 0.5 on ranks 1, 3");
  EXPECT_EQ(four.output().find("--lr is"), std::string::npos) << "what is alike is not listed\n" << four.output();
  expect_no_step(ck);
}

/// A folder of pictures, train/CLASS/i.jpg and val/CLASS/i.jpg.
void make_pictures(const fs::path& root, int of_dogs) {
  io::Image image(12, 10, 3);
  for (std::size_t k = 0; k < image.pixels.size(); ++k) image.pixels[k] = static_cast<std::uint8_t>(k * 5);
  const auto bytes = io::encode_jpeg(image.view(), 90);
  for (const std::string part : {"train", "val"})
    for (const std::string name : {"cat", "dog"}) {
      fs::create_directories(root / part / name);
      for (int i = 0; i < (name == "dog" && part == "train" ? of_dogs : 4); ++i)
        std::ofstream(root / part / name / (std::to_string(i) + ".jpg"), std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
}

TEST(TrainFaults, OtherDataUnderTheSamePathAreNamed) {  // as on the disks of two nodes
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck", here = folder.path() / "here", there = folder.path() / "there";
  make_pictures(here / "pictures", 4);
  make_pictures(there / "pictures", 3);
  const Words arguments = {"pictures", "--arch",   "resnet20", "--image-size",     "8",        "-b",
                           "2",        "--epochs", "1",        "--checkpoint-dir", ck.string()};
  const auto in = [&](const fs::path& where) {
    Words out = {"-wdir", where.string()};
    for (const auto& word : train(arguments)) out.push_back(word);
    return out;
  };
  MixedJob job({in(here), in(there)});
  ASSERT_TRUE(job.finish(20)) << job.output();
  EXPECT_EQ(job.code(), 3) << job.output();
  EXPECT_SAYS(job, "ranks see different data at 'pictures': training fingerprint is ");
  EXPECT_SAYS(job, "training samples is 8 on rank 0, 7 on rank 1");
  EXPECT_EQ(job.output().find("validation"), std::string::npos) << "they are alike\n" << job.output();
  EXPECT_EQ(job.lines_of_ours(), 1) << job.output();
  expect_no_step(ck);
}

TEST(TrainFaults, AnotherBuildIsNamed) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck", other = folder.path() / "imagenet_train";
  std::string program;
  {
    std::ifstream file(APEX_IMAGENET_TRAIN, std::ios::binary);
    program.assign(std::istreambuf_iterator<char>(file), {});
  }
  // The note: sizes of name and id, type 3, "GNU", the id.
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);
  const auto at = program.find(note);
  ASSERT_NE(at, std::string::npos) << "the linker left no build id";
  program[at + note.size()] ^= 0x10;
  std::ofstream(other, std::ios::binary).write(program.data(), static_cast<std::streamsize>(program.size()));
  fs::permissions(other, fs::perms::owner_all);

  MixedJob job({train(short_run(ck)), train(short_run(ck), other.string())});
  ASSERT_TRUE(job.finish(20)) << job.output();
  EXPECT_EQ(job.code(), 2) << job.output();
  EXPECT_SAYS(job, "ranks were started differently: program is ");
  EXPECT_EQ(job.output().find("libapex is"), std::string::npos) << job.output();
  EXPECT_EQ(job.lines_of_ours(), 1) << job.output();
  expect_no_step(ck);
}

// Fault matrix 17
TEST(TrainFaults, AStoppedRankEndsTheJobWithAReportOfTheOthers) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  const auto long_run = train(tiny(ck, {"--synthetic-size", "2400", "-b", "4", "--epochs", "1", "--timeout", "3"}));
  MixedJob job(std::vector<Words>(3, long_run), {"APEX_READ_DELAY_MS=40"});
  ASSERT_TRUE(job.reaches_step(ck / "metrics.jsonl", 40)) << job.output();
  const auto ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[1], SIGSTOP);
  ASSERT_TRUE(job.finish(3 + 10)) << job.output();
  EXPECT_EQ(job.code(), 7) << job.output();
  EXPECT_EQ(job.survivors(), 0);
  EXPECT_SAYS(job, "gave up after 3.");
  EXPECT_SAYS(job, "apex: rank 0 (");
  EXPECT_SAYS(job, "apex: rank 2 (");
  EXPECT_SAYS(job, "last 64 collectives, oldest first:");
  EXPECT_SAYS(job, "on world/ddp \"bucket");
}

}  // namespace
}  // namespace apex::test
