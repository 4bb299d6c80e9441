// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Run as 1 to 4 processes: what is written by any number of ranks is read by any other.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/resource.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>

#include "sample_tree.hpp"

namespace apex {
namespace {

namespace fs = std::filesystem;

int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}
int size_of_world() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
int rank() { return rank_of(MPI_COMM_WORLD); }

/// A folder that the ranks share, emptied by rank 0.
class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints()
      : folder(concat("checkpoint_", ::testing::UnitTest::GetInstance()->current_test_info()->name(), '_',
                      shared_number())) {
    if (rank() == 0) folder.own();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~Checkpoints() override { MPI_Barrier(MPI_COMM_WORLD); }

  static int shared_number() {
    int number = static_cast<int>(getpid());
    MPI_Bcast(&number, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return number;
  }

  test::Folder folder;
};

std::uint64_t sum_of(const std::vector<unsigned char>& bytes) {
  constexpr std::size_t kBlock = std::size_t{4} << 20;
  std::vector<XXH64_hash_t> sums;
  for (std::size_t at = 0; at < bytes.size(); at += kBlock)
    sums.push_back(XXH64(bytes.data() + at, std::min(kBlock, bytes.size() - at), 0));
  return XXH64(sums.data(), sums.size() * sizeof(XXH64_hash_t), 0);
}

void expect_holds(const io::CheckpointFile& file, const io::Tree& tree) {
  EXPECT_EQ(file.datasets().size(), tree.datasets().size());
  EXPECT_EQ(file.groups().size(), tree.groups().size());
  for (const auto& [path, dataset] : tree.datasets()) {
    SCOPED_TRACE(path);
    ASSERT_TRUE(file.has_dataset(path));
    const auto& info = file.datasets().find(path)->second;
    EXPECT_EQ(info.attributes, dataset.attributes);
    if (dataset.holds_strings()) {
      EXPECT_EQ(file.read_strings(path), dataset.strings);
      continue;
    }
    const Tensor back = file.read(path);
    EXPECT_EQ(back.dtype(), dataset.tensor.dtype());
    EXPECT_EQ(back.sizes(), dataset.tensor.sizes());
    EXPECT_TRUE(back.is_contiguous());
    const auto expected = test::logical_bytes(dataset.tensor);
    EXPECT_EQ(test::logical_bytes(back), expected);
    EXPECT_EQ(info.xxh64, sum_of(expected));
  }
  for (const auto& [path, attributes] : tree.groups()) {
    if (path.empty()) continue;
    EXPECT_EQ(file.attributes(path), attributes) << path;
  }
}

TEST_F(Checkpoints, RoundTripOfEveryTypeShapeAndAttribute) {
  const auto tree = test::sample_tree(true);
  const auto result = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 42, tree, {.verify = io::Verify::full});
  EXPECT_EQ(result.path.filename(), "step_00000042.h5");
  EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(result.path)), result.bytes);
  const auto file = io::open_checkpoint(folder.path());
  EXPECT_EQ(file.step(), 42);
  expect_holds(file, tree);
  const auto& root = file.attributes("");
  EXPECT_EQ(io::attribute<std::string>(root, "format", "root"), "apex-checkpoint");
  EXPECT_EQ(io::attribute<std::int64_t>(root, "format_version", "root"), 1);
  EXPECT_EQ(io::attribute<std::int64_t>(root, "world_size", "root"), size_of_world());
  EXPECT_EQ(io::attribute<std::int64_t>(root, "epoch", "root"), 7);
  EXPECT_TRUE(io::attribute<bool>(root, "complete", "root"));
  EXPECT_EQ(io::attribute<double>(root, "epoch", "root"), 7.0) << "an integer serves as a number";
  EXPECT_EQ(file.children("a"), std::vector<std::string>{"b"});
}

// "every rank writes its share": at least 0.8/W of the bytes.
TEST_F(Checkpoints, EveryRankWritesItsShare) {
  const auto tree = test::sample_tree(true);
  const auto result = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, tree, {.verify = io::Verify::none});
  ASSERT_EQ(result.bytes_per_rank.size(), static_cast<std::size_t>(size_of_world()));
  const auto total = std::accumulate(result.bytes_per_rank.begin(), result.bytes_per_rank.end(), std::int64_t{0});
  std::int64_t expected = 0;
  for (const auto& [path, dataset] : tree.datasets())
    expected += dataset.holds_strings() ? 0 : static_cast<std::int64_t>(dataset.tensor.bytes());
  EXPECT_GE(total, expected);
  EXPECT_LE(total, expected + 1000);
  for (const auto bytes : result.bytes_per_rank)
    EXPECT_GE(static_cast<double>(bytes), 0.8 * static_cast<double>(total) / size_of_world());
}

// What the kernel saw this process write agrees with the report.
TEST_F(Checkpoints, TheReportedShareIsWhatIsWritten) {
  const auto written = [] {
    std::ifstream in("/proc/self/io");
    std::string key;
    long long value = 0;
    while (in >> key >> value)
      if (key == "wchar:") return value;
    return -1LL;
  };
  const auto tree = test::sample_tree(true);
  const auto before = written();
  if (before < 0) GTEST_SKIP() << "no /proc/self/io here";
  const auto result = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, tree);
  const auto mine = static_cast<double>(result.bytes_per_rank[static_cast<std::size_t>(rank())]);
  EXPECT_GE(static_cast<double>(written() - before), mine);
  EXPECT_LE(static_cast<double>(written() - before), mine + 2e6) << "metadata and messages are small beside the data";
}

TEST_F(Checkpoints, EqualStateGivesEqualFiles) {
  const auto tree = test::sample_tree(true);
  const auto a = io::write_checkpoint(MPI_COMM_WORLD, folder.path() / "a", 3, tree);
  sleep(1);  // a time stamp would differ by now
  const auto b = io::write_checkpoint(MPI_COMM_WORLD, folder.path() / "b", 3, test::sample_tree(true));
  EXPECT_TRUE(test::read_bytes(a.path) == test::read_bytes(b.path));
}

TEST_F(Checkpoints, AnyRankCountReadsWhatAnyOtherWrote) {
  const auto tree = test::sample_tree(false);
  for (int writers = 1; writers <= size_of_world(); ++writers) {
    MPI_Comm some = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank() < writers ? 0 : MPI_UNDEFINED, rank(), &some);
    if (some != MPI_COMM_NULL) {
      io::write_checkpoint(some, folder.path(), writers, tree);
      MPI_Comm_free(&some);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const auto file = io::open_checkpoint(folder.path());
    EXPECT_EQ(file.step(), writers);
    expect_holds(file, tree);
  }
}

TEST_F(Checkpoints, ATreeThatDiffersBetweenRanksIsRefusedEverywhereByName) {
  if (size_of_world() == 1) GTEST_SKIP() << "needs a second rank";
  const auto expect_refused = [&](const io::Tree& tree, const std::string& name) {
    try {
      io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, tree);
      ADD_FAILURE() << "accepted a difference in " << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Kind::argument);
      EXPECT_NE(std::string(e.what()).find('\'' + name + '\''), std::string::npos) << e.what();
    }
    EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
  };
  const bool last = rank() == size_of_world() - 1;
  auto sizes = test::sample_tree(false);
  sizes.add("model/w", test::filled({last ? 3 : 2}, DType::f32, 1));
  expect_refused(sizes, "/model/w");
  auto types = test::sample_tree(false);
  types.add("model/w", test::filled({2}, last ? DType::f64 : DType::f32, 1));
  expect_refused(types, "/model/w");
  auto missing = test::sample_tree(false);
  if (!last) missing.add("model/w", test::filled({2}, DType::f32, 1));
  expect_refused(missing, "/model");
  auto extra = test::sample_tree(false);
  if (last) extra.add("zzz", test::filled({2}, DType::f32, 1));
  expect_refused(extra, "/zzz");
  auto attribute = test::sample_tree(false);
  attribute.group("scheduler")["lr"] = last ? 0.1 : 0.2;
  expect_refused(attribute, "/scheduler");
  // Times differ between ranks and may: rank 0's are kept.
  auto times = test::sample_tree(false);
  times.group("metrics")["seconds"] = 1.0 + rank();
  io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, times);
  const auto file = io::open_checkpoint(folder.path());
  EXPECT_EQ(io::attribute<double>(file.attributes("metrics"), "seconds", "metrics"), 1.0);
}

TEST_F(Checkpoints, BadArgumentsAreNamed) {
  io::Tree tree;
  tree.add("a/b", test::filled({2}, DType::f32, 1));
  for (const char* path : {"", "/a", "a/", "a//b", "a/./b", "a/../b", "a\nb"})
    EXPECT_THROW(tree.add(path, test::filled({1}, DType::f32, 1)), Error) << path;
  EXPECT_THROW(tree.add(std::string(2000, 'x'), test::filled({1}, DType::f32, 1)), Error);
  EXPECT_THROW(tree.add("a/b", test::filled({2}, DType::f32, 1)), Error) << "added twice";
  EXPECT_THROW(tree.add("a", test::filled({2}, DType::f32, 1)), Error) << "a group already";
  EXPECT_THROW(tree.add("a/b/c", test::filled({2}, DType::f32, 1)), Error) << "below a dataset";
  EXPECT_THROW(tree.group("a/b"), Error) << "a dataset already";
  EXPECT_THROW(tree.add("c", Tensor()), Error) << "undefined";
  EXPECT_THROW(tree.add("d", std::vector<std::string>{std::string("a\0b", 3)}), Error) << "NUL in a string";
  EXPECT_THROW(io::write_checkpoint(MPI_COMM_WORLD, folder.path(), -1, tree), Error) << "negative step";
  tree.group("big")["list"] = std::vector<double>(9000, 1.0);
  try {
    io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, tree);
    ADD_FAILURE() << "an attribute beyond HDF5's limit was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::argument) << e.what();
    EXPECT_NE(std::string(e.what()).find("'list'"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(!fs::exists(folder.path()) || fs::is_empty(folder.path())) << "nothing is left behind";
}

TEST_F(Checkpoints, KeepsTheNewestBestAndLoaded) {
  io::Tree tree;
  tree.add("w", test::filled({10}, DType::f32, 1));
  const auto steps = [&] {
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<std::int64_t> all;
    for (const auto& f : io::list_checkpoints(folder.path())) all.push_back(f.step);
    MPI_Barrier(MPI_COMM_WORLD);
    return all;
  };
  using Steps = std::vector<std::int64_t>;
  for (const int step : {10, 20, 30})
    io::write_checkpoint(MPI_COMM_WORLD, folder.path(), step, tree, {.keep = 0, .best = step == 20});
  EXPECT_EQ(steps(), (Steps{10, 20, 30}));
  const auto loaded = folder.path() / "step_00000010.h5";
  auto r = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 40, tree, {.keep = 1, .loaded_from = loaded});
  EXPECT_EQ(steps(), (Steps{10, 20, 40})) << "10 was loaded, 20 is the best, 30 may go";
  EXPECT_EQ(r.deleted, std::vector<fs::path>{folder.path() / "step_00000030.h5"});
  EXPECT_EQ(io::latest_checkpoint(folder.path()), folder.path() / "step_00000040.h5");
  EXPECT_EQ(io::best_checkpoint(folder.path()), folder.path() / "step_00000020.h5");
  r = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 50, tree, {.keep = 2, .best = true});
  EXPECT_EQ(steps(), (Steps{40, 50}));
  // A run started from an older file writes steps below the newest: what it has just written stays.
  io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 5, tree, {.keep = 2});
  EXPECT_EQ(steps(), (Steps{5, 40, 50}));
  EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 50);
  EXPECT_EQ(test::read_bytes(folder.path() / "LATEST"), "step_00000005.h5\n");
}

// ENOSPC, EDQUOT and EFBIG take one way; RLIMIT_FSIZE makes EFBIG without a file system of our own.
TEST_F(Checkpoints, AFullDiskIsReportedEverywhereAndTheOldCheckpointStays) {
  io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, test::sample_tree(false));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small{std::min<rlim_t>(1 << 20, before.rlim_max), before.rlim_max};
  // One rank alone meets the limit; all must hear of it. A file's size is set by rank 0.
  if (rank() == 0) setrlimit(RLIMIT_FSIZE, &small);
  try {
    io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 2, test::sample_tree(true));
    ADD_FAILURE() << "wrote a file beyond the limit";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::exhausted) << e.what();
    EXPECT_NE(std::string(e.what()).find("step_00000002.h5"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(" bytes"), std::string::npos) << e.what();
  }
  if (rank() == 0) setrlimit(RLIMIT_FSIZE, &before);
  // The last rank meets it in the middle of its own writing.
  const bool last = rank() == size_of_world() - 1;
  if (size_of_world() > 1) {
    if (last) setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 2, test::sample_tree(true)), Error);
    if (last) setrlimit(RLIMIT_FSIZE, &before);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 1);
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& e : fs::directory_iterator(folder.path())) ++entries;
  EXPECT_EQ(entries, 2u) << "step_00000001.h5 and LATEST, no temporary file";
  MPI_Barrier(MPI_COMM_WORLD);
  io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 2, test::sample_tree(true));
  EXPECT_EQ(io::open_checkpoint(folder.path()).step(), 2) << "and the next attempt works";
}

TEST_F(Checkpoints, ADirectoryThatCannotBeMadeIsNamed) {
  if (rank() == 0) {
    fs::create_directories(folder.path());
    test::write_bytes(folder.path() / "file", "x");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  try {
    io::write_checkpoint(MPI_COMM_WORLD, folder.path() / "file" / "below", 1, test::sample_tree(false));
    ADD_FAILURE() << "wrote below a file";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::data) << e.what();
    EXPECT_NE(std::string(e.what()).find((folder.path() / "file" / "below").string()), std::string::npos) << e.what();
  }
}

TEST_F(Checkpoints, TemporaryFilesOfDeadJobsGo) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::string name = host;
  name = name.substr(0, name.find('.'));
  const auto dead = folder.path() / ("step_00000007.h5.tmp." + name + "-999999999.0");
  const auto alive = folder.path() / ("step_00000007.h5.tmp." + name + "-1.0");
  const auto elsewhere = folder.path() / "step_00000007.h5.tmp.987654.0";
  const auto old = folder.path() / "LATEST.tmp.987654.1";
  const auto not_ours = folder.path() / "notes.tmp.987654.1";
  if (rank() == 0) {
    fs::create_directories(folder.path());
    for (const auto& path : {dead, alive, elsewhere, old, not_ours}) test::write_bytes(path, "half");
    for (const auto& path : {old, not_ours})
      fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 8, test::sample_tree(false));
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(old)) << "untouched for two hours";
  EXPECT_TRUE(fs::exists(alive)) << "process 1 lives";
  EXPECT_TRUE(fs::exists(elsewhere)) << "may belong to a job that runs elsewhere";
  EXPECT_TRUE(fs::exists(not_ours));
}

/// Elements of `whole` from begin on, as a tensor of one dimension.
Tensor part_of(const Tensor& whole, std::int64_t begin, std::int64_t count) {
  const auto bytes = test::logical_bytes(whole);
  const auto element = static_cast<std::int64_t>(size_of(whole.dtype()));
  Tensor part = empty({count}, whole.dtype());
  std::copy_n(bytes.data() + begin * element, count * element, static_cast<unsigned char*>(part.raw_data()));
  return part;
}

TEST_F(Checkpoints, PartsOfRanksGiveTheSameFileAsWholeTensors) {
  io::Tree whole, parts;
  const std::int64_t world = size_of_world();
  const auto add = [&](const std::string& path, const Tensor& t, int shift) {
    whole.add(path, t, {{"a", std::int64_t{1}}});
    const std::int64_t n = t.numel(), at = (rank() + shift) % world;  // not in the order of ranks
    const std::int64_t begin = at * n / world, end = (at + 1) * n / world;
    parts.add_part(path, t.sizes(), begin, part_of(t, begin, end - begin), {{"a", std::int64_t{1}}});
  };
  Tensor large = empty({3, 900001});  // three blocks, cut where no block ends
  for (std::int64_t i = 0; i < large.numel(); ++i) large.data<float>()[i] = static_cast<float>(i);
  add("s/large", large, 1);
  add("s/turned", views::transpose(large, 0, 1), 0);
  add("s/short", from_values<std::int32_t>({3}, {7, 8, 9}), 2);  // with four ranks one has nothing
  add("s/none", empty({0, 4}, DType::bf16), 0);
  whole.add("t", large);
  parts.add("t", large);
  const auto first = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, whole);
  const auto bytes = test::read_bytes(first.path);
  const auto second = io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, parts, {.verify = io::Verify::full});
  EXPECT_EQ(test::read_bytes(second.path), bytes);
  expect_holds(io::open_checkpoint(folder.path()), whole);
}

TEST_F(Checkpoints, PartsMustCoverTheDataset) {
  const std::int64_t world = size_of_world();
  const auto write = [&](std::int64_t begin, std::int64_t count) {
    io::Tree tree;
    tree.add_part("x", {2 * world + 1}, begin, empty({count}));
    io::write_checkpoint(MPI_COMM_WORLD, folder.path(), 1, tree);
  };
  EXPECT_THROW(write(2 * rank(), 2), Error) << "the last element belongs to nobody";
  EXPECT_THROW(write(rank() == 0 ? 0 : 2 * rank() - 1, rank() == world - 1 ? 2 : 3), Error);
  io::Tree tree;
  EXPECT_THROW(tree.add_part("y", {4}, 3, empty({2})), Error) << "outside";
  EXPECT_THROW(tree.add_part("y", {4}, -1, empty({2})), Error);
  EXPECT_THROW(tree.add_part("y", {4}, 0, empty({2, 2})), Error) << "two dimensions";
}

}  // namespace
}  // namespace apex
