// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// What a reader makes of files that are not as they were written. Run as one process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "sample_tree.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;

io::Tree small_tree() {
  io::Tree tree;
  tree.add("model/conv.weight", test::filled({4, 3, 3, 3}, DType::f32, 1), {{"kind", std::string("parameter")}});
  tree.add("model/fc.bias", test::filled({10}, DType::f64, 2));
  tree.add("model/half", test::filled({5}, DType::bf16, 3));
  tree.add("optimizer/0/groups/0/params", std::vector<std::string>{"conv.weight", "fc.bias"});
  tree.group("config")["path"] = std::string("/data");
  return tree;
}

class Damage : public ::testing::Test {
 protected:
  Damage() : folder(concat("damage_", getpid())) {
    folder.own();
    file = io::write_checkpoint(MPI_COMM_SELF, folder.path(), 5, small_tree()).path;
    good = test::read_bytes(file);
  }

  /// The message with which `bytes` are refused as damaged; empty when they are read in full.
  std::string refusal(const std::string& bytes) {
    const auto path = folder.path() / "step_00000009.h5";
    test::write_bytes(path, bytes);
    try {
      io::open_checkpoint(path);
      return {};
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Kind::damaged) << e.what();
      const std::string text = e.what();
      EXPECT_NE(text.find(path.string()), std::string::npos) << "names the file: " << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << "one line: " << text;
      return text;
    }
  }

  /// Where a dataset's bytes lie.
  std::pair<std::size_t, std::size_t> place_of(const std::string& path) {
    std::size_t at = good.size();
    const auto checkpoint = io::CheckpointFile(file);
    const auto& all = checkpoint.datasets();
    for (auto it = all.rbegin(); it != all.rend(); ++it) {
      at -= static_cast<std::size_t>(it->second.bytes);
      if (it->first == path) return {at, static_cast<std::size_t>(it->second.bytes)};
    }
    ADD_FAILURE() << path;
    return {};
  }

  test::Folder folder;
  fs::path file;
  std::string good;
};

TEST_F(Damage, TheGoodFileIsGood) { EXPECT_EQ(refusal(good), ""); }

TEST_F(Damage, EveryFlippedBitOfADatasetIsRefusedByItsName) {
  for (const auto* path : {"model/conv.weight", "model/fc.bias", "model/half", "optimizer/0/groups/0/params"}) {
    const auto [begin, bytes] = place_of(path);
    for (std::size_t i = begin; i < begin + bytes; i += 3) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      EXPECT_NE(refusal(bad).find(concat("dataset '/", path, "'")), std::string::npos) << "byte " << i;
    }
  }
}

TEST_F(Damage, EveryFlippedByteIsRefused) {
  for (std::size_t i = 0; i < good.size(); i += 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_NE(refusal(bad), "") << "byte " << i << " of " << good.size();
  }
}

TEST_F(Damage, EveryTruncationIsRefused) {
  for (std::size_t n = 0; n < good.size(); n += n < 1100 ? 13 : 101)
    EXPECT_NE(refusal(good.substr(0, n)), "") << n << " of " << good.size();
  EXPECT_NE(refusal(good.substr(0, good.size() - 1)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal(good + 'x').find(concat(good.size() + 1, " bytes instead of ", good.size())), std::string::npos);
}

TEST_F(Damage, WhatIsNoCheckpointIsCalledSo) {
  EXPECT_NE(refusal("").find("empty file"), std::string::npos);
  EXPECT_NE(refusal("hello\n").find("not an apex checkpoint"), std::string::npos);
  EXPECT_NE(refusal(std::string(4096, '\0')).find("not an apex checkpoint"), std::string::npos);
  EXPECT_NE(refusal(good.substr(512)).find("an HDF5 file, but not an apex checkpoint"), std::string::npos);
  std::string version = good;
  version[std::string("apex-checkpoint ").size()] = '7';
  EXPECT_NE(refusal(version).find("format version 7; this program reads version 1"), std::string::npos);
}

// Sums found right by accident or by design: HDF5 and our own checks must hold on their own.
TEST_F(Damage, ForgedSumsDoNotCrashTheReader) {
  unsigned long long bytes = 0, metadata = 0;
  ASSERT_EQ(std::sscanf(good.c_str(), "apex-checkpoint 1\nbytes %llu\nmetadata %llu", &bytes, &metadata), 2);
  const auto sealed = [&](std::string text, unsigned long long size, unsigned long long m) {
    const std::size_t end = std::min<std::size_t>(m, text.size());
    const std::uint64_t sum = end > 512 ? XXH64(text.data() + 512, end - 512, 0) : 0;
    std::array<char, 512> head{};
    std::snprintf(head.data(), head.size(), "apex-checkpoint 1\nbytes %llu\nmetadata %llu\nxxh64 %016llx\n", size, m,
                  static_cast<unsigned long long>(sum));
    return text.replace(0, 512, head.data(), 512);
  };
  ASSERT_EQ(sealed(good, bytes, metadata), good);
  for (const unsigned long long m : {0ULL, 1ULL, 512ULL, 513ULL, 600ULL, 2000ULL, metadata - 1, metadata + 1, bytes,
                                     bytes + 1, 1ULL << 40, 1ULL << 62})
    EXPECT_NE(refusal(sealed(good, bytes, m)), "") << m;
  // A longer file whose head agrees: HDF5's own end of file does not.
  EXPECT_NE(refusal(sealed(good + std::string(100, 'x'), bytes + 100, metadata)), "");
  // Names and types changed under a right sum.
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), to.size(), to);
    return sealed(bad, bytes, metadata);
  };
  EXPECT_NE(refusal(replaced("complete", "complexe")), "");
  EXPECT_NE(refusal(replaced(std::string("xxh64\0", 6), std::string("xxh65\0", 6))), "");
  EXPECT_NE(refusal(replaced(std::string("format_version"), "format_verzion")), "");
}

TEST_F(Damage, RandomMutationsNeitherCrashNorPass) {
  std::mt19937 random(1);
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const char* rounds = std::getenv("APEX_FUZZ_ROUNDS");
  for (int round = 0, last = rounds ? std::atoi(rounds) : 600; round < last; ++round) {
    std::string bad = good;
    switch (pick(4)) {
      case 0:
        for (std::size_t i = 0, n = 1 + pick(8); i < n; ++i) bad[pick(bad.size())] = static_cast<char>(pick(256));
        break;
      case 1: bad.erase(pick(bad.size()), 1 + pick(64)); break;
      case 2: bad.insert(pick(bad.size()), std::string(1 + pick(64), static_cast<char>(pick(256)))); break;
      default: {
        const std::size_t from = pick(bad.size()), to = pick(bad.size()),
                          n = std::min(bad.size() - std::max(from, to), 1 + pick(256));
        bad.replace(to, n, good.substr(from, n));
      }
    }
    if (bad == good) continue;
    EXPECT_NE(refusal(bad), "") << "round " << round;
  }
}

TEST_F(Damage, MissingPathsAndOddOnesAreDataErrors) {
  const auto kind_of = [](const fs::path& path) {
    try {
      io::open_checkpoint(path);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
      return e.kind();
    }
    return Kind::state;
  };
  EXPECT_EQ(kind_of(folder.path() / "none"), Kind::data);
  fs::create_directories(folder.path() / "empty");
  EXPECT_EQ(kind_of(folder.path() / "empty"), Kind::data);
  ASSERT_EQ(mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(kind_of(folder.path() / "fifo"), Kind::data) << "a FIFO is refused, not waited for";
}

TEST_F(Damage, ADamagedFileIsPassedOverForTheOlderOne) {
  const auto newer = io::write_checkpoint(MPI_COMM_SELF, folder.path(), 6, small_tree()).path;
  const auto newest = io::write_checkpoint(MPI_COMM_SELF, folder.path(), 7, small_tree()).path;
  fs::resize_file(newest, fs::file_size(newest) - 1);
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);
  test::write_bytes(newer, bad);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 5);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  for (const auto& path : {newest, newer, file})
    EXPECT_NE(warnings.find(path.string()), std::string::npos) << path << " in: " << warnings;
  fs::resize_file(file, 100);
  ::testing::internal::CaptureStderr();
  try {
    io::open_checkpoint(folder.path());
    ADD_FAILURE() << "nothing good was left";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::damaged);
    EXPECT_NE(std::string(e.what()).find("none of the 3 checkpoints"), std::string::npos) << e.what();
  }
  ::testing::internal::GetCapturedStderr();
}

TEST_F(Damage, NotesAreOnlyNotes) {
  io::write_checkpoint(MPI_COMM_SELF, folder.path(), 6, small_tree());
  EXPECT_EQ(io::latest_checkpoint(folder.path()), folder.path() / "step_00000006.h5");
  for (const std::string text : {"", "step_00000005.h5\n", "../../etc/passwd\n", "step_00009999.h5", "\xff\xfe"}) {
    test::write_bytes(folder.path() / "LATEST", text);
    EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 6) << "LATEST says " << text;
  }
  EXPECT_EQ(io::latest_checkpoint(folder.path()), std::nullopt);
  fs::remove(folder.path() / "LATEST");
  EXPECT_EQ(io::latest_checkpoint(folder.path()), std::nullopt);
  EXPECT_EQ(io::best_checkpoint(folder.path()), std::nullopt);
  EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 6);
  // Files that only look like checkpoints are not taken for some.
  for (const char* name :
       {"step_1.h5", "step_0000000x.h5", "step_00000099.h5.tmp.1.0", "step_00000099.h5~", "step_-0000001.h5"})
    test::write_bytes(folder.path() / name, "x");
  fs::create_directories(folder.path() / "step_00000098.h5");
  EXPECT_EQ(io::list_checkpoints(folder.path()).size(), 2u);
}

TEST_F(Damage, AskingForWhatIsNotThereNamesIt) {
  const io::CheckpointFile checkpoint(file);
  const auto message = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Kind::damaged);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { checkpoint.read("model/none"); }).find("'/model/none'"), std::string::npos);
  EXPECT_NE(message([&] { checkpoint.attributes("none"); }).find("'/none'"), std::string::npos);
  EXPECT_NE(message([&] { checkpoint.read("optimizer/0/groups/0/params"); }).find("strings"), std::string::npos);
  EXPECT_NE(message([&] { checkpoint.read_strings("model/fc.bias"); }).find("numbers"), std::string::npos);
  const auto& config = checkpoint.attributes("config");
  EXPECT_NE(message([&] { io::attribute<double>(config, "none", "here"); }).find("here: attribute 'none'"),
            std::string::npos);
  EXPECT_NE(message([&] { io::attribute<double>(config, "path", "here"); }).find("not a number"), std::string::npos);
}

TEST_F(Damage, AttemptsCountStartsFromTheSameStep) {
  const auto directory = folder.path() / "new";
  EXPECT_EQ(io::read_attempts(directory).count, 0);
  for (int i = 1; i <= io::kMaxAttempts; ++i) EXPECT_EQ(io::record_attempt(directory, 0).count, i);
  EXPECT_EQ(io::read_attempts(directory).count, io::kMaxAttempts);
  EXPECT_EQ(io::record_attempt(directory, 100).count, 1) << "a newer checkpoint was reached";
  EXPECT_EQ(io::read_attempts(directory).start_step, 100);
  for (const std::string text : {"", "garbage", "start_step -5 count 2", "start_step 100 count -1"}) {
    test::write_bytes(directory / "ATTEMPTS", text);
    EXPECT_EQ(io::read_attempts(directory).count, 0) << text;
    EXPECT_EQ(io::record_attempt(directory, 100).count, 1) << text;
  }
}

/// A process that takes the lock of `directory` and then waits to be killed. @returns its number once it holds the lock
pid_t process_that_locks(const fs::path& directory) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    try {
      const io::DirectoryLock lock(directory);
      if (write(ends[1], "r", 1) == 1)
        for (;;) pause();
    } catch (...) {}
    _exit(1);
  }
  close(ends[1]);
  char got = 0;
  const bool held = read(ends[0], &got, 1) == 1;
  close(ends[0]);
  return held ? child : -1;
}

TEST_F(Damage, LockKeepsASecondRunOutAndDiesWithItsProcess) {
  const auto directory = folder.path() / "locked";
  const pid_t child = process_that_locks(directory);
  ASSERT_GT(child, 0);
  const auto refused = [&] {
    try {
      const io::DirectoryLock lock(directory, 0.1);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Kind::data);
      EXPECT_NE(std::string(e.what()).find(concat("process ", child)), std::string::npos) << e.what();
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused());
  EXPECT_TRUE(refused()) << "a refusal leaves the lock where it is";
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(directory / "LOCK")) << "killed: nobody removed it";
  {
    const io::DirectoryLock lock(directory, 0);
    EXPECT_THROW(io::DirectoryLock(directory, 0), Error) << "not even from the same process";
    EXPECT_TRUE(fs::exists(directory / "LOCK"));
  }
  EXPECT_FALSE(fs::exists(directory / "LOCK")) << "an orderly end leaves nothing behind";
  // A holder that ends while we wait: the file we opened is removed, and the next one is taken.
  auto first = std::make_unique<io::DirectoryLock>(directory, 0);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    first.reset();
  });
  const io::DirectoryLock second(directory, 10);
  ends.join();
  EXPECT_TRUE(fs::exists(directory / "LOCK"));
  EXPECT_THROW(io::DirectoryLock(directory, 0), Error);
}

/// Output of a command, or nothing when it fails.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe)) text += buffer.data();
  return pclose(pipe) == 0 ? text : std::string();
}

TEST_F(Damage, HDF5ToolsReadTheFile) {
  if (output_of("h5dump --version").empty()) GTEST_SKIP() << "hdf5-tools are not installed";
  const auto all = io::write_checkpoint(MPI_COMM_SELF, folder.path() / "all", 1, test::sample_tree(false)).path;
  EXPECT_NE(output_of("h5dump " + all.string()), "") << "h5dump reads all of it";
  const auto text = output_of("h5dump -d /model/conv.weight " + file.string());
  EXPECT_NE(text.find("H5T_IEEE_F32LE"), std::string::npos) << text;
  EXPECT_NE(text.find("( 4, 3, 3, 3 )"), std::string::npos) << text;
  EXPECT_NE(output_of("h5dump -a /format " + file.string()).find("\"apex-checkpoint\""), std::string::npos);
  EXPECT_NE(output_of("h5ls -r " + file.string()).find("/model/fc.bias"), std::string::npos);
  const auto copy = io::write_checkpoint(MPI_COMM_SELF, folder.path() / "copy", 5, small_tree()).path;
  EXPECT_EQ(output_of("h5diff -c " + file.string() + ' ' + copy.string() + " && echo same"), "same\n");
}

TEST_F(Damage, H5pyReadsTheFile) {
  if (output_of("/usr/bin/python3 -c 'import h5py, numpy; print(1)'").empty()) GTEST_SKIP() << "h5py is not installed";
  const auto all = io::write_checkpoint(MPI_COMM_SELF, folder.path() / "all", 1, test::sample_tree(false)).path;
  const auto script = folder.path() / "read.py";
  test::write_bytes(script, R"(import h5py, sys
f = h5py.File(sys.argv[1])
t = f['types']
names = ['f64', 'f32', 'f16', 'bf16', 'i64', 'i32', 'u8', 'bool']
print(*[t[n + '.odd'].dtype for n in names])
print(t['f32.last'].shape, t['f32.scalar'].shape, t['f32.empty'].shape)
a = f['a/b/c'].attrs
print(a['yes'], a['big'], a['real'], a['text'], list(a['texts']), list(a['flags']))
print(f['names'].asstr()[0], f.attrs['complete'], f.attrs['format'])
for name in list(t): t[name][...]
)");
  EXPECT_EQ(output_of("PYTHONIOENCODING=utf-8 /usr/bin/python3 " + script.string() + ' ' + all.string()),
            "float64 float32 float16 float32 int64 int32 uint8 bool\n"
            "(6, 5, 3, 2) () (4, 0, 2)\n"
            "True -9223372036854775807 0.1 naïve, with spaces ['T-shirt/top', '', 'Sandal'] [True, False, True]\n"
            "layer1.0.conv1.weight True apex-checkpoint\n");

  test::write_bytes(script, R"(import h5py, sys
with h5py.File(sys.argv[1], 'r+') as f: f['model/fc.bias'][3] = 1.5
)");
  output_of("/usr/bin/python3 " + script.string() + ' ' + file.string());
  EXPECT_NE(refusal(test::read_bytes(file)).find("dataset '/model/fc.bias'"), std::string::npos)
      << "named when h5py changed it";
}

}  // namespace
}  // namespace apex
