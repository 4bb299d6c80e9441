// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iostream>
#include <map>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

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
    if (file.has_group(path)) print_attributes(file.attributes(path), "  ");
    for (const auto& [key, count] : keys) std::cout << "  " << count << " x " << key << '\n';
    for (const auto& g : file.children(path + "/groups")) {
      const std::string group = path + "/groups/" + g;
      const auto params = file.datasets().find(group + "/params");
      const auto count = params == file.datasets().end() ? 0 : element_count(params->second.sizes);
      std::cout << "  group " << g << " (" << count << " parameters)\n";
      if (file.has_group(group)) print_attributes(file.attributes(group), "    ");
    }
  }
}

void show_page(const io::CheckpointFile& file) {
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

std::string text_of(const Statistics& s) {
  std::string out;
  if (s.finite > 0) out = concat("  min ", to_text(s.min), "  max ", to_text(s.max), "  mean ", to_text(s.mean));
  if (s.not_finite > 0) out += concat("  ", s.not_finite, " not finite");
  return out;
}

Json json_of(const Statistics& s) {
  Json out;
  out["min"] = s.finite > 0 ? Json(s.min) : Json();
  out["max"] = s.finite > 0 ? Json(s.max) : Json();
  out["mean"] = s.finite > 0 ? Json(s.mean) : Json();
  out["not_finite"] = s.not_finite;
  return out;
}

/// Groups and datasets at or below an object, a line each.
void show_list(const io::CheckpointFile& file, const std::string& object, bool stats) {
  for (const auto& [path, attributes] : file.groups()) {
    if (!is_at_or_below(path, object) || attributes.empty()) continue;
    std::cout << '/' << path << '\n';
    print_attributes(attributes, "  ");
  }
  for (const auto& [path, info] : file.datasets()) {
    if (!is_at_or_below(path, object)) continue;
    std::cout << '/' << path << "  " << describe(info) << "  xxh64 " << hash_text(info.xxh64);
    if (stats && !info.strings) std::cout << text_of(statistics(file.read(path)));
    std::cout << '\n';
  }
}

void show_dataset(const io::CheckpointFile& file, const std::string& path, bool stats) {
  const auto& info = file.datasets().find(path)->second;
  std::cout << '/' << path << "  " << describe(info) << ", " << bytes_text(info.bytes) << ", xxh64 "
            << hash_text(info.xxh64) << '\n';
  print_attributes(info.attributes, "  ");
  if (stats && !info.strings) std::cout << text_of(statistics(file.read(path))) << '\n';
  print_values(file, path, info);
}

/// The same in one document, whatever the object is.
void show_json(const io::CheckpointFile& file, const std::string& object, bool stats) {
  Json document;
  document["file"] = file.path().string();
  document["step"] = file.step();
  document["bytes"] = file.bytes();
  document["groups"] = Json::object();
  document["datasets"] = Json::array();
  for (const auto& [path, attributes] : file.groups())
    if (is_at_or_below(path, object)) document["groups"]['/' + path] = to_json(attributes);
  for (const auto& [path, info] : file.datasets()) {
    if (!is_at_or_below(path, object)) continue;
    auto entry = to_json(path, info);
    if (stats && !info.strings) entry["stats"] = json_of(statistics(file.read(path)));
    if (info.strings && path == object) entry["values"] = file.read_strings(path);
    document["datasets"].push_back(std::move(entry));
  }
  print(document);
}

}  // namespace

int show(const Path& path, const ShowOptions& options) {
  // Of a directory the newest good one is wanted, so that its data are checked too, as a resume checks them.
  const bool choose = std::filesystem::is_directory(path);
  const auto file = io::open_checkpoint(path, choose ? io::Verify::full : io::Verify::none);
  const std::string object = bare(options.object);
  if (!file.has_group(object) && !file.has_dataset(object))
    fail(Kind::data, concat(file.path().string(), ": has no group or dataset '/", object, "'"));
  if (options.json)
    show_json(file, object, options.stats);
  else if (file.has_dataset(object))
    show_dataset(file, object, options.stats);
  else if (options.list || options.stats || !object.empty())
    show_list(file, object, options.stats);
  else
    show_page(file);
  return exit_code::kOk;
}

}  // namespace apex::checkpoint_tools
