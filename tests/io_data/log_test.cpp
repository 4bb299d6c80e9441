// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apex/io/log/metrics.hpp"
#include "apex/io/log/progress.hpp"
#include "apex/io/log/tensorboard.hpp"
#include "io_data/common.hpp"
#include "support/event_file.hpp"

namespace apex::io {
namespace {

using test::expect_error;
using test::little;
using test::records_of;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

TEST(Metrics, OneFlushedLinePerRecord) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "run" / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(3, "train",
               {{"loss", 0.1}, {"skipped", std::int64_t{2}}, {"last", false}, {"name", std::string("\"a\"\n")}});
  const std::string text = test::read_text(path);  // readable while the writer lives
  EXPECT_EQ(text,
            "{\"step\":3,\"kind\":\"train\",\"loss\":0.1,\"skipped\":2,\"last\":false,\"name\":\"\\\"a\\\"\\n\"}\n");
  writer.write(
      4, "train",
      {{"loss", std::nan("")}, {"top", std::numeric_limits<double>::infinity()}, {"bad", std::string("\xff")}});
  const std::string line = test::read_text(path).substr(text.size());
  const auto record = nlohmann::json::parse(line);
  EXPECT_TRUE(record["loss"].is_null());
  EXPECT_TRUE(record["top"].is_null());
  EXPECT_EQ(line.back(), '\n');
}

TEST(Metrics, DoublesComeBackExactly) {
  const test::TemporaryFolder folder;
  MetricsWriter writer(folder.path() / "m.jsonl");
  const double value = 0.1 + 0.2;
  writer.write(0, "x", {{"v", value}, {"w", 1e-310}});
  const auto record = nlohmann::json::parse(test::read_text(folder.path() / "m.jsonl"));
  EXPECT_EQ(record["v"].get<double>(), value);
  EXPECT_EQ(record["w"].get<double>(), 1e-310);
}

TEST(Metrics, ResumeDropsWhatWillComeAgain) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    for (std::int64_t step = 1; step <= 5; ++step) {
      writer.write(step, "train", {{"loss", 1.0 / static_cast<double>(step)}});
      if (step % 2 == 0) writer.write(step, "val", {{"top1", 50.0}});
    }
  }
  test::write_text(path, test::read_text(path) + "{\"step\":6,\"kin");  // killed while writing
  {
    MetricsWriter writer(path, 3);
    writer.write(4, "train", {{"loss", 9.0}});
  }
  std::vector<std::pair<int, std::string>> found;
  std::istringstream lines(test::read_text(path));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    found.emplace_back(record["step"], record["kind"]);
  }
  EXPECT_EQ(found, (std::vector<std::pair<int, std::string>>{
                       {1, "train"}, {2, "train"}, {2, "val"}, {3, "train"}, {4, "train"}}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // no temporary file left
  const auto before = test::read_text(path);
  { MetricsWriter same(path, 100); }
  EXPECT_EQ(test::read_text(path), before);
  { MetricsWriter anew(path); }
  EXPECT_EQ(test::read_text(path), "");
  { MetricsWriter first(folder.path() / "new.jsonl", 7); }  // resumed, but there was no file yet
  EXPECT_TRUE(fs::exists(folder.path() / "new.jsonl"));
}

TEST(Metrics, ForeignLinesSurviveAResume) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "m.jsonl";
  test::write_text(path, "# a note\n{\"step\":9}\n[1]\n{\"step\":\"x\"}\n");
  { MetricsWriter writer(path, 3); }
  EXPECT_EQ(test::read_text(path), "# a note\n[1]\n{\"step\":\"x\"}\n");
}

TEST(Metrics, FailuresNameThePath) {
  const test::TemporaryFolder folder;
  expect_error(Kind::data, {folder.path().string()}, [&] { MetricsWriter{folder.path()}; });
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  MetricsWriter writer("/dev/full");
  expect_error(Kind::exhausted, {"/dev/full", "No space"}, [&] { writer.write(1, "train", {}); });
}

TEST(TensorBoard, Crc32cAsInRfc3720) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(masked_crc32c("123456789"), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
}

TEST(TensorBoard, WritesEventsByTheBook) {
  const test::TemporaryFolder folder;
  TensorBoardWriter writer(folder.path() / "tb");
  writer.scalar("train/loss", 0.5, 300);
  writer.scalar("v", -2.0, 0);
  EXPECT_TRUE(writer.path().filename().string().starts_with("events.out.tfevents."));
  const auto records = records_of(test::read_text(writer.path()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0][0], 0x09);  // field 1, eight bytes: wall time
  const double wall = std::bit_cast<double>(little<std::uint64_t>(records[0], 1));
  EXPECT_NEAR(wall, static_cast<double>(::time(nullptr)), 5);
  EXPECT_EQ(records[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  // Field 2 varint 300 = ac 02; field 5: summary { field 1: value { 1: tag, 2: float 0.5 = 00 00 00 3f } }.
  EXPECT_EQ(records[1].substr(9),
            std::string("\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x00\x3f", 24));
  EXPECT_EQ(records[2].substr(9), std::string("\x10\x00\x2a\x0a\x0a\x08\x0a\x01v\x15\x00\x00\x00\xc0", 14));
}

TEST(TensorBoard, TextsAndHyperparameters) {
  const test::TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.text("notes", "# h\u00e9\n| a |", 3);
  writer.hparams({{"lr", "0.1"}, {"epochs", "-3"}, {"sync", "true"}, {"arch", "resnet50"}, {"x", "1e"}, {"y", "inf"}});
  writer.end(false);
  const auto events = test::events_of(folder.path());
  EXPECT_TRUE(events.purges.empty());
  EXPECT_EQ(events.texts.at("notes").at(3), "# h\u00e9\n| a |");
  ASSERT_EQ(events.hparams.size(), 2u);
  std::map<std::string, test::Message> values;
  const test::Message start = events.hparams[0].message(3);
  for (const auto& entry : start.bytes.at(1))
    values.emplace(test::Message(entry).text(1), test::Message(entry).message(2));
  EXPECT_EQ(values.at("lr").real(2), 0.1);
  EXPECT_EQ(values.at("epochs").real(2), -3.0);
  EXPECT_EQ(values.at("sync").number(4), 1u);
  EXPECT_EQ(values.at("arch").text(3), "resnet50");
  EXPECT_EQ(values.at("x").text(3), "1e");
  EXPECT_EQ(values.at("y").text(3), "inf");
  EXPECT_NEAR(start.real(5), static_cast<double>(::time(nullptr)), 5);
  EXPECT_EQ(events.hparams[1].message(4).number(1), 2u);
}

TEST(TensorBoard, AResumedRunSortsLastWhateverTheClockSays) {
  const test::TemporaryFolder folder;
  const auto name = [&](const char* text) { return folder.path() / (std::string("events.out.tfevents.") + text); };
  for (const char* other : {"4000000000.h.1.0", "x.h.1.0", "77777777777.h.1.0"}) test::write_text(name(other), "");
  const TensorBoardWriter first(folder.path()), second(folder.path(), 7);
  EXPECT_GT(first.path(), name("4000000000.h.1.0"));
  EXPECT_GT(second.path(), first.path());
  EXPECT_LT(second.path(), name("4000000010"));
}

TEST(TensorBoard, AResumePurgesLaterSteps) {
  const test::TemporaryFolder folder;
  TensorBoardWriter first(folder.path()), second(folder.path(), 40);
  EXPECT_NE(first.path(), second.path());
  const auto records = records_of(test::read_text(second.path()));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].substr(9),
            std::string("\x10\x28\x3a\x02\x08\x01", 6));  // step 40, session_log { status: START }
  test::write_text(folder.path() / "file", "x");
  expect_error(Kind::data, {"file"}, [&] { TensorBoardWriter{folder.path() / "file"}; });
}

/// A place to write to, and a clock to turn.
class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() { fd_ = ::open((folder_.path() / "out").c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600); }
  ~ProgressTest() override { ::close(fd_); }
  ProgressOptions options(ProgressMode mode) {
    ProgressOptions o;
    o.mode = mode;
    o.fd = fd_;
    o.now = [this] { return time_; };
    return o;
  }
  std::string output() { return test::read_text(folder_.path() / "out"); }
  test::TemporaryFolder folder_;
  int fd_ = -1;
  std::chrono::steady_clock::time_point time_{};
};

TEST_F(ProgressTest, LinesAreFewAndWhole) {
  ProgressOptions o = options(ProgressMode::lines);
  o.every = 10s;
  o.every_steps = 5;
  Progress progress(o);
  for (int step = 1; step <= 60; ++step) {
    time_ += 1s;
    EXPECT_EQ(progress.due(step, 60), step == 1 || (step - 1) % 10 == 0 || step == 60);
    progress.update(step, 60, concat("loss ", step, "\nnext"));
  }
  EXPECT_EQ(output(),
            "[1/60] loss 1 next\n[11/60] loss 11 next\n[21/60] loss 21 next\n[31/60] loss 31 next\n"
            "[41/60] loss 41 next\n[51/60] loss 51 next\n[60/60] loss 60 next\n");
  EXPECT_EQ(output().find('\r'), std::string::npos);
}

TEST_F(ProgressTest, BothDistancesHold) {
  ProgressOptions o = options(ProgressMode::lines);
  o.every = 2s;
  o.every_steps = 100;
  Progress progress(o);
  progress.update(1, 1000, "");
  time_ += 60s;
  EXPECT_FALSE(progress.due(100, 1000));
  EXPECT_TRUE(progress.due(101, 1000));
  progress.update(101, 1000, "");
  time_ += 1s;
  EXPECT_FALSE(progress.due(500, 1000));
  EXPECT_TRUE(progress.due(1000, 1000));
  progress.restart();
  EXPECT_TRUE(progress.due(1, 1000));
}

TEST_F(ProgressTest, BarRewritesOneLine) {
  Progress progress(options(ProgressMode::bar));
  progress.update(1, 4, "a");
  progress.update(2, 4, "too soon");
  time_ += 1s;
  progress.update(2, 4, std::string(300, 'x'));
  progress.line("a note");
  time_ += 1s;
  progress.update(4, 4, "end");
  const std::string out = output();
  EXPECT_EQ(out.find("too soon"), std::string::npos);
  EXPECT_TRUE(out.starts_with("\r[=====>              ]  25% 1/4 a\x1b[K\r[==========>         ]  50% 2/4 xxx")) << out;
  EXPECT_NE(out.find("\r\x1b[Ka note\n"), std::string::npos) << out;
  EXPECT_TRUE(out.ends_with("\r[====================] 100% 4/4 end\x1b[K\n")) << out;
  EXPECT_EQ(std::count(out.begin(), out.end(), 'x'), 79 - 32);  // cut to the width of a terminal
}

TEST_F(ProgressTest, TheCountMayBeLeftToTheText) {
  ProgressOptions o = options(ProgressMode::lines);
  o.counter = false;
  Progress(o).update(1, 4, "Epoch: [0][1/4]\tLoss 2");
  EXPECT_EQ(output(), "Epoch: [0][1/4]\tLoss 2\n");
  o.mode = ProgressMode::bar;
  Progress(o).update(4, 4, "a\tb");
  EXPECT_TRUE(output().ends_with("\r[====================] 100% a b\x1b[K\n")) << output();
}

TEST_F(ProgressTest, ABarLeftOpenIsEnded) {
  {
    Progress progress(options(ProgressMode::bar));
    progress.update(1, 4, "a");
  }
  EXPECT_TRUE(output().ends_with("\n"));
}

TEST_F(ProgressTest, AutomaticAsksWhetherItIsATerminal) {
  EXPECT_EQ(Progress(options(ProgressMode::automatic)).mode(), ProgressMode::lines);
  int main_end = -1, terminal = -1;
  if (::openpty(&main_end, &terminal, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "no pseudo terminals here";
  ProgressOptions o = options(ProgressMode::automatic);
  o.fd = terminal;
  EXPECT_EQ(Progress(o).mode(), ProgressMode::lines);  // what mpirun gives its ranks has no size
  const winsize size{24, 80, 0, 0};
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(Progress(o).mode(), ProgressMode::bar);
  ::close(main_end);
  ::close(terminal);
}

TEST_F(ProgressTest, NoneIsSilentAndAClosedOutputNoError) {
  Progress none(options(ProgressMode::none));
  EXPECT_FALSE(none.due(1, 1));
  none.update(1, 1, "x");
  none.line("x");
  EXPECT_EQ(output(), "");
  ProgressOptions closed = options(ProgressMode::lines);
  closed.fd = 987;
  Progress lines(closed);
  EXPECT_NO_THROW(lines.update(1, 2, "x"));
}

TEST(ProgressModes, AreParsed) {
  EXPECT_EQ(parse_progress_mode("auto"), ProgressMode::automatic);
  EXPECT_EQ(parse_progress_mode("bar"), ProgressMode::bar);
  EXPECT_EQ(parse_progress_mode("lines"), ProgressMode::lines);
  EXPECT_EQ(parse_progress_mode("none"), ProgressMode::none);
  EXPECT_EQ(parse_progress_mode("dots"), std::nullopt);
}

}  // namespace
}  // namespace apex::io
