// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "commands.hpp"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <set>

namespace apex::checkpoint_tools {
namespace {

namespace fs = std::filesystem;

int list_directory(const Path& directory) {
  const auto files = io::list_checkpoints(directory);
  if (files.empty()) fail(Kind::data, concat(directory.string(), ": holds no checkpoint (step_*.h5)"));
  const auto latest = io::latest_checkpoint(directory), best = io::best_checkpoint(directory);
  int code = exit_code::kOk;
  for (const auto& [step, path] : files) {
    std::cout << path.filename().string() << "  step " << std::setw(8) << step << "  ";
    try {
      const io::CheckpointFile file(path);
      std::cout << std::setw(10) << bytes_text(file.bytes());
    } catch (const Error& e) {
      std::cout << std::setw(10) << "damaged";
      code = std::max(code, exit_code_of(e.kind()));
    }
    if (latest == path) std::cout << "  LATEST";
    if (best == path) std::cout << "  BEST";
    std::cout << '\n';
  }
  if (const auto attempts = io::read_attempts(directory); attempts.count > 1)
    std::cout << "ATTEMPTS: " << attempts.count << " starts from step " << attempts.start_step << " in a row\n";
  return code;
}

int list_file(const io::CheckpointFile& file) {
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

void print_attributes(const io::Attributes& attributes, const std::string& indent) {
  for (const auto& [name, value] : attributes) std::cout << indent << name << " = " << to_text(value) << '\n';
}

/// Parameters, buffers, and what they hold.
void show_model(const io::CheckpointFile& file) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> kinds;  // datasets, elements
  for (const auto& [path, info] : file.datasets()) {
    if (top_of(path) != "model") continue;
    const auto kind = info.attributes.find("kind");
    const auto* name = kind == info.attributes.end() ? nullptr : std::get_if<std::string>(&kind->second);
    auto& [datasets, elements] = kinds[name ? *name : "other"];
    ++datasets;
    elements += element_count(info.sizes);
  }
  for (const auto& [kind, count] : kinds)
    std::cout << "  " << count.first << ' ' << kind << (count.first == 1 ? "" : "s") << ", " << count.second
              << " elements\n";
}

void show_optimizers(const io::CheckpointFile& file) {
  for (const auto& i : file.children("optimizer")) {
    const std::string path = "optimizer/" + i;
    std::map<std::string, int> keys;
    for (const auto& [name, info] : file.datasets())
      if (name.starts_with(path + "/state/")) ++keys[name.substr(name.rfind('/') + 1)];
    std::cout << "/" << path << '\n';
    print_attributes(file.attributes(path), "  ");
    for (const auto& [key, count] : keys) std::cout << "  " << count << " x " << key << '\n';
    for (const auto& g : file.children(path + "/groups")) {
      const std::string group = path + "/groups/" + g;
      const auto params = file.datasets().find(group + "/params");
      const auto count = params == file.datasets().end() ? 0 : element_count(params->second.sizes);
      std::cout << "  group " << g << " (" << count << " parameters)\n";
      print_attributes(file.attributes(group), "    ");
    }
  }
}

int show_whole(const io::CheckpointFile& file) {
  std::cout << file.path().string() << ", " << bytes_text(file.bytes()) << "\n/\n";
  print_attributes(file.attributes(""), "  ");
  for (const auto& name : file.children("")) {
    if (!file.has_group(name)) continue;
    if (name == "optimizer") {
      show_optimizers(file);
      continue;
    }
    std::cout << '/' << name << '\n';
    print_attributes(file.attributes(name), "  ");
    if (name == "model") {
      show_model(file);
      continue;
    }
    for (const auto& child : file.children(name)) {
      const std::string path = name + '/' + child;
      const auto found = file.datasets().find(path);
      std::cout << "  " << child << (found == file.datasets().end() ? "/" : "  " + describe(found->second)) << '\n';
      if (file.has_group(path)) print_attributes(file.attributes(path), "    ");
    }
  }
  return exit_code::kOk;
}

void print_values(const io::CheckpointFile& file, const std::string& path, const io::DatasetInfo& info) {
  constexpr std::int64_t kShown = 10;
  if (info.strings) {
    const auto strings = file.read_strings(path);
    for (std::size_t i = 0; i < strings.size(); ++i) std::cout << "  [" << i << "] " << strings[i] << '\n';
    return;
  }
  const Tensor t = file.read(path);
  const Tensor flat = views::reshape(t, {t.numel()});
  std::cout << "  values:";
  for (std::int64_t i = 0; i < std::min(kShown, t.numel()); ++i) std::cout << ' ' << views::select(flat, 0, i).item();
  std::cout << (t.numel() > kShown ? " ...\n" : "\n");
}

int show_object(const io::CheckpointFile& file, std::string object) {
  while (object.starts_with('/')) object.erase(0, 1);
  while (object.ends_with('/')) object.pop_back();
  if (file.has_group(object)) {
    std::cout << '/' << object << '\n';
    print_attributes(file.attributes(object), "  ");
    for (const auto& child : file.children(object)) std::cout << "  " << child << '\n';
    return exit_code::kOk;
  }
  const auto found = file.datasets().find(object);
  if (found == file.datasets().end())
    fail(Kind::data, concat(file.path().string(), ": has no group or dataset '/", object, "'"));
  std::cout << '/' << object << "  " << describe(found->second) << ", " << bytes_text(found->second.bytes) << ", xxh64 "
            << std::hex << std::setfill('0') << std::setw(16) << found->second.xxh64 << std::dec << std::setfill(' ')
            << '\n';
  print_attributes(found->second.attributes, "  ");
  print_values(file, object, found->second);
  return exit_code::kOk;
}

}  // namespace

int list(const Path& path) {
  if (fs::is_directory(path)) return list_directory(path);
  return list_file(io::open_checkpoint(path, io::Verify::none));
}

int verify(const std::vector<Path>& paths) {
  int code = exit_code::kOk;
  const auto check = [&](const Path& path) {
    try {
      const auto file = io::open_checkpoint(path, io::Verify::full);
      std::cout << "ok       " << path.string() << " (step " << file.step() << ", " << file.datasets().size()
                << " datasets, " << bytes_text(file.bytes()) << ")\n";
    } catch (const Error& e) {
      std::cout << "DAMAGED  " << e.what() << '\n';
      code = std::max(code, exit_code_of(e.kind()));
    }
  };
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      check(path);
      continue;
    }
    const auto files = io::list_checkpoints(path);
    if (files.empty()) fail(Kind::data, concat(path.string(), ": holds no checkpoint (step_*.h5)"));
    for (const auto& file : files) check(file.path);
  }
  return code;
}

int show(const Path& path, const std::string& object) {
  const auto file = io::open_checkpoint(path, io::Verify::none);
  return object.empty() ? show_whole(file) : show_object(file, object);
}

}  // namespace apex::checkpoint_tools
