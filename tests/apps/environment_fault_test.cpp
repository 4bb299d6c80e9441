// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// imagenet_train where things go wrong around it: signals at any time, full disks, files that are no checkpoints, odd
// environments. Each test looks for processes and shared memory that were left behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "apex/io/image/image.hpp"
#include "runs.hpp"

namespace apex::test {
namespace {

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    const auto name = entry.path().filename().string();
    if (name.find("vader_segment") != std::string::npos) names.insert(name);
  }
  return names;
}

/// Whether a process has it mapped: another job of this host, that started meanwhile.
bool is_in_use(const std::string& segment) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    std::ifstream in(entry.path() / "maps");
    for (std::string line; std::getline(in, line);)
      if (line.find(segment) != std::string::npos) return true;
  }
  return false;
}

/// Processes with `text` in their command line.
int processes_with(const std::string& text) {
  int n = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    std::ifstream in(entry.path() / "cmdline", std::ios::binary);
    const std::string words{std::istreambuf_iterator<char>(in), {}};
    n += words.find(text) != std::string::npos;
  }
  return n;
}

class Fault : public ::testing::Test {
 protected:
  Fault() : segments_(shared_memory()) {}
  ~Fault() override {
    for (int i = 0; i < 100 && processes_with(folder.path().string()) > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(processes_with(folder.path().string()), 0) << "processes are left";
    for (const auto& name : shared_memory())
      EXPECT_TRUE(segments_.contains(name) || is_in_use(name)) << "shared memory is left: " << name;
  }

  fs::path path(const std::string& name) const { return folder.path() / name; }
  /// The words that start `ranks` ranks of imagenet_train, with `before` in front of the program.
  static std::vector<std::string> command(int ranks, const std::vector<std::string>& before,
                                          const std::vector<std::string>& arguments) {
    std::vector<std::string> out;
    if (ranks > 1) out = {APEX_MPIEXEC, "-n", std::to_string(ranks)};
    out.insert(out.end(), before.begin(), before.end());
    out.push_back(APEX_IMAGENET_TRAIN);
    out.insert(out.end(), arguments.begin(), arguments.end());
    return out;
  }
  static std::vector<std::string> bad_system(const std::string& how) {
    return {"env", std::string("LD_PRELOAD=") + APEX_BAD_SYSTEM, "BAD_SYSTEM=" + how};
  }

  const TemporaryFolder folder;

 private:
  std::set<std::string> segments_;  // those of other programs
};

const std::vector<std::string> kOnCpu = {"APEX_OPT_DEVICE=cpu"};

// ---- row 9: the signal that asks for an end, at any time

class Signals : public Fault {
 protected:
  /// 3 epochs of 5 steps, each validated.
  std::vector<std::string> arguments(const std::string& name, const std::string& data = "synthetic") const {
    return {data,
            "--arch",
            "resnet20",
            "--image-size",
            "8",
            "--channels",
            "1",
            "-b",
            "6",
            "--epochs",
            "3",
            "--lr-schedule",
            "one-cycle",
            "--synthetic-size",
            "60",
            "-p",
            "1",
            "-j",
            "1",
            "--checkpoint-every",
            "100steps",
            "--resume",
            "auto",
            "--checkpoint-dir",
            path(name).string()};
  }
  void run_whole(const std::string& data = "synthetic") {
    TrainRun whole(2, without_synthetic(arguments("whole", data), data));
    ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  }
  static std::vector<std::string> without_synthetic(std::vector<std::string> words, const std::string& data) {
    if (data != "synthetic")
      words.erase(std::find(words.begin(), words.end(), "--synthetic-size"),
                  std::find(words.begin(), words.end(), "--synthetic-size") + 2);
    return words;
  }
  /// One checkpoint, no half one; the run goes on from it and ends as one that was left alone.
  void expect_resumable(const std::string& data = "synthetic") {
    ASSERT_EQ(io::list_checkpoints(path("parts")).size(), 1u);
    for (const auto& entry : fs::directory_iterator(path("parts")))
      EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << entry.path();
    TrainRun second(2, without_synthetic(arguments("parts", data), data));
    ASSERT_EQ(second.finish().code(), 0) << second.output();
    EXPECT_EQ(difference(newest(path("whole")), newest(path("parts"))), "");
    EXPECT_EQ(losses(path("whole") / "metrics.jsonl"), losses(path("parts") / "metrics.jsonl"));
  }
};

TEST_F(Signals, BeforeMpiStarts) {
  run_whole();
  Subprocess run(command(2, {APEX_PENDING_SIGNAL, std::to_string(SIGUSR1)}, arguments("parts")), kOnCpu);
  ASSERT_TRUE(run.finish(60)) << run.output();
  EXPECT_EQ(run.exit_code(), 99) << run.output();
  EXPECT_NE(run.output().find("=> signal USR1: checkpoint at step"), std::string::npos) << run.output();
  EXPECT_LE(io::CheckpointFile(newest(path("parts"))).step(), 2) << "the end comes as soon as the ranks have agreed";
  expect_resumable();
}

void write_pictures(const fs::path& root, int validation) {
  for (const auto& [part, count] : {std::pair{"train", 30}, {"val", validation}}) {
    for (const char* name : {"cat", "dog"}) {
      fs::create_directories(root / part / name);
      for (int i = 0; i < count; ++i) {
        io::Image image(9, 8, 1);
        for (std::size_t k = 0; k < image.pixels.size(); ++k)
          image.pixels[k] =
              static_cast<std::uint8_t>(k * 3 + static_cast<std::size_t>(i) * 7 + (name[0] == 'c' ? 90 : 0));
        const auto bytes = io::encode_png(image.view());
        std::ofstream(root / part / name / (std::to_string(i) + ".png"), std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      }
    }
  }
}

TEST_F(Signals, WhileTheDataAreScanned) {
  const auto data = path("pictures").string();
  write_pictures(data, 3);
  run_whole(data);
  Subprocess run(
      command(2, bad_system("slow_folder,pictures/train"), without_synthetic(arguments("parts", data), data)), kOnCpu);
  ASSERT_TRUE(run.read_until([](const std::string& out) { return out.find("opt_level") != out.npos; }, 60));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run.read_until([](const std::string&) { return true; }, 1);
  ASSERT_EQ(run.output().find("creating model"), std::string::npos) << "the scan is over: " << run.output();
  ::kill(run.pid(), SIGUSR1);
  ASSERT_TRUE(run.finish(60)) << run.output();
  EXPECT_EQ(run.exit_code(), 99) << run.output();
  expect_resumable(data);
}

TEST_F(Signals, InTheValidation) {
  const auto data = path("pictures").string();
  write_pictures(data, 48);  // eight batches
  run_whole(data);
  TrainRun run(2, without_synthetic(arguments("parts", data), data), {"APEX_READ_DELAY_MS=150"});
  ASSERT_TRUE(run.reads("Test: [1/")) << run.output();
  run.signal(SIGUSR1);
  ASSERT_EQ(run.finish().code(), 99) << run.output();
  EXPECT_EQ(io::CheckpointFile(newest(path("parts"))).step(), 5) << "the epoch is trained, and not yet validated";
  EXPECT_TRUE(records(path("parts") / "metrics.jsonl", "validate").empty());
  expect_resumable(data);
  EXPECT_EQ(records(path("parts") / "metrics.jsonl", "validate").size(), 3u);
}

TEST_F(Signals, SeveralTimes) {
  run_whole();
  TrainRun run(2, arguments("parts"), {"APEX_READ_DELAY_MS=60"});
  ASSERT_TRUE(run.reaches_step(path("parts") / "metrics.jsonl", 3)) << run.output();
  for (int i = 0; i < 5; ++i) {  // within a step: mpiexec, once its ranks have ended, does not survive another one
    run.signal(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(run.finish().code(), 99) << run.output();
  expect_resumable();
}

// ---- row 4: a disk that is full for a while

class FullDisk : public Fault {
 protected:
  TrainRun train(const std::string& how, const std::string& fault) {
    return TrainRun(2,
                    tiny(path("ck"), {"--synthetic-size", "96", "-b", "6", "--epochs", "1", "--checkpoint-every",
                                      "3steps", "--checkpoint-failure", how}),
                    {"APEX_FAULT=" + fault});
  }
};

TEST_F(FullDisk, StopsTheRunUnlessAskedToGoOn) {
  auto stops = train("stop", "enospc@before_metadata#2");
  EXPECT_EQ(stops.finish().code(), 6) << stops.output();
  EXPECT_TRUE(stops.says("No space left on device") && stops.says("step_00000006.h5") && stops.says(" bytes"))
      << stops.output();
  EXPECT_EQ(io::open_checkpoint(path("ck")).step(), 3) << "the old one is kept";
  fs::remove_all(path("ck"));

  auto goes_on = train("warn", "enospc@before_metadata#2");
  EXPECT_EQ(goes_on.finish().code(), 0) << goes_on.output();
  EXPECT_TRUE(goes_on.says("no checkpoint of step 6: ") && goes_on.says("training goes on")) << goes_on.output();
  std::vector<std::int64_t> steps;
  for (const auto& file : io::list_checkpoints(path("ck"))) {
    EXPECT_NO_THROW(io::CheckpointFile(file.path).verify());
    steps.push_back(file.step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{3, 8})) << "8: the end";
  fs::remove_all(path("ck"));

  auto last = train("warn", "short@mid_write:1#3");
  EXPECT_EQ(last.finish().code(), 6) << "what was trained would be lost: " << last.output();
  EXPECT_EQ(io::open_checkpoint(path("ck")).step(), 6);
}

// ---- row 7: what is no checkpoint

TEST_F(Fault, FilesThatAreNoCheckpoints) {
  TrainRun good(1, tiny(path("ck"), {"--synthetic-size", "16", "-b", "4", "--epochs", "1"}));
  ASSERT_EQ(good.finish().code(), 0) << good.output();
  std::ifstream in(newest(path("ck")), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::string version = bytes, swapped = bytes;
  version[std::string("apex-checkpoint ").size()] = '9';
  std::reverse(swapped.begin() + 512, swapped.begin() + 600);
  for (const auto& [name, text, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"empty", "", "empty file"},
           {"text", "not a checkpoint\n", "not an apex checkpoint"},
           {"cut by one", bytes.substr(0, bytes.size() - 1), "truncated"},
           {"head only", bytes.substr(0, 512), "truncated"},
           {"hdf5", bytes.substr(512), "an HDF5 file, but not an apex checkpoint"},
           {"version", version, "format version 9"},
           {"metadata", swapped, "metadata do not match"}}) {
    const auto file = path(name + ".h5");
    std::ofstream(file, std::ios::binary) << text;
    for (const char* option : {"--resume", "--pretrained"}) {
      TrainRun run(1,
                   tiny(path("other"), {"--synthetic-size", "16", "-b", "4", "--epochs", "1", option, file.string()}));
      EXPECT_EQ(run.finish(20).code(), 5) << name << ": " << run.output();
      EXPECT_TRUE(run.says(file.string()) && run.says(says)) << run.output();
    }
  }
  EXPECT_TRUE(io::list_checkpoints(path("other")).empty());
}

// ---- row 32: odd environments change nothing

class Environment : public Fault {
 protected:
  std::vector<std::string> arguments(const fs::path& directory) const {
    return tiny(directory, {"--synthetic-size", "96", "-b", "12", "--epochs", "1", "--checkpoint-every", "3steps",
                            "--resume", "auto", "--metrics", path("metrics.jsonl").string()});
  }
  /// Trains in one process behind `before` and compares with a run in a plain environment.
  void expect_no_effect(const std::vector<std::string>& before, const fs::path& directory,
                        std::vector<std::string> variables = {}) {
    if (!fs::exists(path("plain"))) {
      TrainRun plain(1, arguments(path("plain")));
      ASSERT_EQ(plain.finish().code(), 0) << plain.output();
    }
    variables.insert(variables.end(), kOnCpu.begin(), kOnCpu.end());
    Subprocess run(command(1, before, arguments(directory)), variables);
    ASSERT_TRUE(run.finish(60)) << run.output();
    EXPECT_EQ(run.exit_code(), 0) << run.output();
    EXPECT_EQ(difference(newest(path("plain")), newest(directory)), "");
    EXPECT_EQ(losses(path("metrics.jsonl")).size(), 8u);
    for (const auto& file : io::list_checkpoints(directory)) EXPECT_NO_THROW(io::CheckpointFile(file.path).verify());
  }
};

TEST_F(Environment, ClockThatJumpsAtMidnight) {
  expect_no_effect(bad_system("clock"), path("jump"), {"TZ=Pacific/Kiritimati"});
}

TEST_F(Environment, LocaleWithADecimalComma) {
  // Made here: a host seldom has it. Where it cannot be made, the variables name a locale that is not there.
  const auto made = path("locales") / "de_DE.UTF-8";
  fs::create_directories(made.parent_path());
  Subprocess make({"sh", "-c", "localedef -i de_DE -f UTF-8 " + made.string() + " >/dev/null 2>&1"});
  make.finish(60);
  expect_no_effect({}, path("german"),
                   {"LOCPATH=" + made.parent_path().string(), "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8"});
}

TEST_F(Environment, PathWithSpacesAndUmlauts) {
  expect_no_effect({}, path("Läufe mit Leerzeichen") / "größe #1 'a' $x; 模型");
}

TEST_F(Environment, FolderThatCannotBeWritten) {
  expect_no_effect({"sh", "-c", "cd /proc && exec \"$0\" \"$@\""}, path("elsewhere"));
}

TEST_F(Environment, ClosedAndFullOutputs) {
  expect_no_effect({"sh", "-c", "exec \"$0\" \"$@\" >&-"}, path("no output"));
  expect_no_effect({"sh", "-c", "exec \"$0\" \"$@\" >&- 2>&- <&-"}, path("nothing open"));
  expect_no_effect({"sh", "-c", "exec \"$0\" \"$@\" >/dev/full"}, path("full output"));
  expect_no_effect({"bash", "-c", "\"$0\" \"$@\" | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}"}, path("reader gone"));
}

}  // namespace
}  // namespace apex::test
