// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <set>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

namespace fs = std::filesystem;

/// A step file as `ls` sees it: its metadata are checked, its data are not.
struct Entry {
  io::StepFile file;
  std::optional<std::int64_t> epoch;
  std::int64_t bytes = 0;
  std::string problem;  ///< empty: complete
  bool latest = false, best = false;
  int code = exit_code::kOk;
};

Entry look(const io::StepFile& file) {
  Entry entry{.file = file};
  std::error_code ignored;
  entry.bytes = static_cast<std::int64_t>(fs::file_size(file.path, ignored));
  if (ignored) entry.bytes = 0;
  try {
    const auto checkpoint = io::open_checkpoint(file.path, io::Verify::none);
    const auto& root = checkpoint.attributes("");
    if (const auto epoch = root.find("epoch"); epoch != root.end())
      if (const auto* value = std::get_if<std::int64_t>(&epoch->second)) entry.epoch = *value;
  } catch (const Error& e) {
    entry.problem = e.what();
    entry.code = exit_code_of(e.kind());
  }
  return entry;
}

void print_line(const Entry& e) {
  std::cout << e.file.path.filename().string() << "  step " << std::setw(8) << e.file.step << "  epoch " << std::setw(4)
            << (e.epoch ? std::to_string(*e.epoch) : "-") << "  " << std::setw(10) << bytes_text(e.bytes) << "  "
            << (e.problem.empty() ? "complete" : "damaged ");
  if (e.latest) std::cout << "  LATEST";
  if (e.best) std::cout << "  BEST";
  if (!e.problem.empty()) std::cout << "  " << e.problem;
  std::cout << '\n';
}

Json json_of(const Entry& e) {
  Json out;
  out["file"] = e.file.path.string();
  out["step"] = e.file.step;
  out["epoch"] = e.epoch ? Json(*e.epoch) : Json();
  out["bytes"] = e.bytes;
  out["complete"] = e.problem.empty();
  if (!e.problem.empty()) out["problem"] = e.problem;
  out["latest"] = e.latest;
  out["best"] = e.best;
  return out;
}

int list_directory(const Path& directory, bool json) {
  const auto files = io::list_checkpoints(directory);
  if (files.empty()) fail(Kind::data, concat(directory.string(), ": holds no checkpoint (step_*.h5)"));
  const auto latest = io::latest_checkpoint(directory), best = io::best_checkpoint(directory);
  const auto attempts = io::read_attempts(directory);
  int code = exit_code::kOk;
  Json document;
  document["directory"] = directory.string();
  document["checkpoints"] = Json::array();
  for (const auto& file : files) {
    auto entry = look(file);
    entry.latest = latest == file.path;
    entry.best = best == file.path;
    code = std::max(code, entry.code);
    if (json)
      document["checkpoints"].push_back(json_of(entry));
    else
      print_line(entry);
  }
  if (json) {
    document["attempts"] = {{"start_step", attempts.start_step}, {"count", attempts.count}};
    print(document);
  } else if (attempts.count > 1) {
    std::cout << "ATTEMPTS: " << attempts.count << " starts from step " << attempts.start_step << " in a row\n";
  }
  return code;
}

int list_file(const io::CheckpointFile& file, bool json) {
  if (json) {
    Json document;
    document["file"] = file.path().string();
    document["groups"] = Json::array();
    document["datasets"] = Json::array();
    for (const auto& [path, attributes] : file.groups()) document["groups"].push_back('/' + path);
    for (const auto& [path, info] : file.datasets()) document["datasets"].push_back(to_json(path, info));
    print(document);
    return exit_code::kOk;
  }
  std::set<std::string> paths;
  for (const auto& [path, attributes] : file.groups()) paths.insert(path);
  for (const auto& [path, info] : file.datasets()) paths.insert(path);
  for (const auto& path : paths) {
    std::cout << '/' << path;
    if (const auto found = file.datasets().find(path); found != file.datasets().end())
      std::cout << "  " << describe(found->second);
    else if (!path.empty())
      std::cout << '/';
    std::cout << '\n';
  }
  return exit_code::kOk;
}

}  // namespace

int list(const Path& path, bool json) {
  if (fs::is_directory(path)) return list_directory(path, json);
  return list_file(io::open_checkpoint(path, io::Verify::none), json);
}

}  // namespace apex::checkpoint_tools
