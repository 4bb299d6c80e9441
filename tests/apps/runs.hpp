// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apex/io/checkpoint.hpp"
#include "support/subprocess.hpp"

namespace apex::test {

namespace fs = std::filesystem;

/// imagenet_train under mpiexec, in a folder of its own, on the CPU unless the arguments name a device.
///
/// APEX_TEST_PROGRAMS names another folder of programs than the build's, and APEX_TEST_MPIEXEC another mpiexec; "none"
/// starts one rank directly, for hosts without MPI's launcher.
class TrainRun {
 public:
  TrainRun(int ranks, std::vector<std::string> arguments, std::vector<std::string> environment = {})
      : process_(command(ranks, arguments), with_device(std::move(environment))) {}

  TrainRun& finish(double seconds = 100) {
    finished_ = process_.finish(seconds);
    EXPECT_TRUE(finished_) << "still running after " << seconds << " s:\n" << output();
    return *this;
  }
  /// Waits until metrics.jsonl tells of this training step.
  bool reaches_step(const fs::path& metrics, std::int64_t step, double seconds = 60) {
    return process_.read_until([&](const std::string&) { return last_step(metrics) >= step; }, seconds);
  }
  /// Waits until the output holds these words.
  bool reads(const std::string& words, double seconds = 60) {
    return process_.read_until([&](const std::string& output) { return output.find(words) != std::string::npos; },
                               seconds);
  }
  void signal(int number) { ::kill(process_.pid(), number); }
  int code() const { return process_.exit_code(); }
  const std::string& output() const { return process_.output(); }
  bool says(const std::string& words) const { return output().find(words) != std::string::npos; }
  double seconds() const { return process_.seconds(); }

  static std::int64_t last_step(const fs::path& metrics) {
    std::int64_t step = 0;
    std::ifstream file(metrics);
    for (std::string line; std::getline(file, line);)
      if (line.find("\"train\"") != std::string::npos) step = nlohmann::json::parse(line)["step"].get<std::int64_t>();
    return step;
  }

 private:
  static std::string setting(const char* name, const std::string& otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
  }
  static std::vector<std::string> with_device(std::vector<std::string> environment) {
    environment.insert(environment.begin(), "APEX_OPT_DEVICE=cpu");  // the command line comes before it
    return environment;
  }
  static std::vector<std::string> command(int ranks, const std::vector<std::string>& arguments) {
    const fs::path built = APEX_IMAGENET_TRAIN;
    const std::string folder = setting("APEX_TEST_PROGRAMS", built.parent_path().string());
    const std::string mpiexec = setting("APEX_TEST_MPIEXEC", APEX_MPIEXEC);
    std::vector<std::string> out;
    if (mpiexec != "none" || ranks > 1) out = {mpiexec, "-n", std::to_string(ranks)};
    out.push_back((fs::path(folder) / built.filename()).string());
    out.insert(out.end(), arguments.begin(), arguments.end());
    return out;
  }
  Subprocess process_;
  bool finished_ = false;
};

/// Records of one kind in metrics.jsonl.
inline std::vector<nlohmann::json> records(const fs::path& metrics, const std::string& kind) {
  std::vector<nlohmann::json> out;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line);
    if (record["kind"] == kind) out.push_back(std::move(record));
  }
  return out;
}

inline std::vector<double> losses(const fs::path& metrics) {
  std::vector<double> out;
  for (const auto& r : records(metrics, "train")) out.push_back(r["loss"].get<double>());
  return out;
}

inline fs::path newest(const fs::path& directory) {
  const auto files = io::list_checkpoints(directory);
  return files.empty() ? fs::path() : files.back().path;
}

/// What differs between two checkpoints in the groups that equal runs must have equal; empty when nothing does.
inline std::string difference(const fs::path& a_path, const fs::path& b_path) {
  const io::CheckpointFile a(a_path), b(b_path);
  const auto counts = [](std::string_view path) {
    for (const char* group : {"model", "optimizer", "amp", "scheduler", "sampler", "rng", "ddp"})
      if (path == group || path.starts_with(std::string(group) + "/")) return true;
    return false;
  };
  std::set<std::string> names;
  for (const auto& [name, info] : a.datasets()) names.insert(name);
  for (const auto& [name, info] : b.datasets()) names.insert(name);
  for (const auto& name : names) {
    if (!counts(name)) continue;
    if (!a.has_dataset(name) || !b.has_dataset(name)) return "only one has /" + name;
    const auto &x = a.datasets().at(name), &y = b.datasets().at(name);
    if (x.xxh64 != y.xxh64 || !(x.sizes == y.sizes) || x.dtype != y.dtype || x.attributes != y.attributes)
      return "/" + name + " differs";
  }
  std::set<std::string> groups;
  for (const auto& [name, attributes] : a.groups()) groups.insert(name);
  for (const auto& [name, attributes] : b.groups()) groups.insert(name);
  for (const auto& name : groups) {
    if (!counts(name)) continue;
    if (!a.has_group(name) || !b.has_group(name)) return "only one has group /" + name;
    if (a.attributes(name) != b.attributes(name)) return "attributes of /" + name + " differ";
  }
  return a.step() == b.step() ? "" : "steps differ";
}

/// Datasets right below or further below a group.
inline std::int64_t dataset_count(const fs::path& path, const std::string& prefix) {
  const io::CheckpointFile file(path);
  std::int64_t n = 0;
  for (const auto& [name, info] : file.datasets()) n += name.starts_with(prefix);
  return n;
}

/// Sample ids of each step, over all ranks, from --log-samples.
inline std::map<std::int64_t, std::vector<std::vector<std::int64_t>>> sample_ids(const std::string& prefix, int ranks) {
  std::map<std::int64_t, std::vector<std::vector<std::int64_t>>> out;
  for (int r = 0; r < ranks; ++r) {
    std::ifstream file(prefix + ".rank" + std::to_string(r) + ".txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::int64_t step = 0, id = 0;
      char colon = 0;
      words >> step >> colon;
      out[step].resize(static_cast<std::size_t>(ranks));
      while (words >> id) out[step][static_cast<std::size_t>(r)].push_back(id);
    }
  }
  return out;
}

/// A network and data so small that a step takes milliseconds.
inline std::vector<std::string> tiny(const fs::path& directory, std::vector<std::string> more = {}) {
  std::vector<std::string> out = {"synthetic",  "--arch", "resnet20",         "--image-size",     "8",
                                  "--channels", "1",      "--checkpoint-dir", directory.string(), "--print-freq",
                                  "5"};
  if (std::find(more.begin(), more.end(), "--lr-schedule") == more.end())
    more.insert(more.end(), {"--lr-schedule", "one-cycle"});
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace apex::test
