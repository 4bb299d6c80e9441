// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iomanip>
#include <iostream>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

/// What is wrong with one file: nothing, its structure, or some of its datasets.
struct Verdict {
  Path path;
  std::int64_t step = 0, bytes = 0;
  std::size_t datasets = 0;
  std::vector<std::string> problems;  ///< one line each, naming file and dataset
  std::vector<std::string> damaged;   ///< the datasets among them
  const char* mark = "DAMAGED";       ///< what a line begins with; another word where the bytes could not be seen
  int code = exit_code::kOk;

  void note(const Error& e) {
    problems.emplace_back(e.what());
    code = std::max(code, exit_code_of(e.kind()));
    if (e.kind() != Kind::damaged) mark = std::filesystem::exists(path) ? "UNREAD" : "MISSING";
  }
};

Verdict check(const Path& path, bool all) {
  Verdict verdict{.path = path};
  try {
    const auto file = io::open_checkpoint(path, io::Verify::none);
    verdict.path = file.path();
    verdict.step = file.step();
    verdict.bytes = file.bytes();
    verdict.datasets = file.datasets().size();
    for (const auto& [name, info] : file.datasets()) {
      try {
        file.verify(name);
      } catch (const Error& e) {
        verdict.note(e);
        verdict.damaged.push_back('/' + name);
        if (!all) break;
      }
    }
  } catch (const Error& e) {
    verdict.note(e);
  }
  return verdict;
}

void print_lines(const Verdict& v) {
  for (const auto& problem : v.problems) std::cout << std::left << std::setw(9) << v.mark << problem << '\n';
  if (v.problems.empty())
    std::cout << "ok       " << v.path.string() << " (step " << v.step << ", " << v.datasets << " datasets, "
              << bytes_text(v.bytes) << ")\n";
}

Json json_of(const Verdict& v) {
  Json out;
  out["file"] = v.path.string();
  out["ok"] = v.problems.empty();
  if (v.datasets > 0) {
    out["step"] = v.step;
    out["bytes"] = v.bytes;
    out["datasets"] = v.datasets;
  }
  out["damaged"] = v.damaged;
  out["problems"] = v.problems;
  return out;
}

}  // namespace

int verify(const std::vector<Path>& paths, const VerifyOptions& options) {
  int code = exit_code::kOk;
  Json document = Json::array();
  const auto take = [&](const Path& path) {
    const Verdict verdict = check(path, options.all);
    code = std::max(code, verdict.code);
    if (options.json)
      document.push_back(json_of(verdict));
    else
      print_lines(verdict);
  };
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      take(path);
      continue;
    }
    const auto files = io::list_checkpoints(path);
    if (files.empty()) fail(Kind::data, concat(path.string(), ": holds no checkpoint (step_*.h5)"));
    for (const auto& file : files) take(file.path);
  }
  if (options.json) print(document);
  return code;
}

}  // namespace apex::checkpoint_tools
