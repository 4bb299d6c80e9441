// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>
#include <set>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

/// What tells two checkpoints apart in one top-level group, the root's attributes counting as group "".
struct GroupDiff {
  int datasets = 0;    ///< in either
  int attributes = 0;  ///< in either, of groups and datasets
  int differing = 0;   ///< datasets and attributes
  std::string first;   ///< of them

  void note(const std::string& what) {
    if (differing++ == 0) first = what;
  }
};
using GroupDiffs = std::map<std::string, GroupDiff>;

void compare_attributes(GroupDiff& diff, const std::string& path, const io::Attributes& a, const io::Attributes& b) {
  std::set<std::string> names;
  for (const auto& [name, value] : a) names.insert(name);
  for (const auto& [name, value] : b) names.insert(name);
  for (const auto& name : names) {
    ++diff.attributes;
    const auto in_a = a.find(name), in_b = b.find(name);
    const std::string where = concat('/', path, '@', name);
    if (in_a == a.end() || in_b == b.end())
      diff.note(concat(where, " is only in ", in_a == a.end() ? "the second" : "the first"));
    else if (in_a->second != in_b->second)
      diff.note(concat(where, ": ", to_text(in_a->second), " and ", to_text(in_b->second)));
  }
}

void compare_datasets(GroupDiffs& diffs, const io::CheckpointFile& a, const io::CheckpointFile& b) {
  std::set<std::string> paths;
  for (const auto& [path, info] : a.datasets()) paths.insert(path);
  for (const auto& [path, info] : b.datasets()) paths.insert(path);
  for (const auto& path : paths) {
    const bool root = path.find('/') == path.npos;
    auto& diff = diffs[root ? "" : top_of(path)];
    ++diff.datasets;
    if (!a.has_dataset(path) || !b.has_dataset(path)) {
      diff.note(concat('/', path, " is only in ", a.has_dataset(path) ? "the first" : "the second"));
      continue;
    }
    const auto& in_a = a.datasets().find(path)->second;
    const auto& in_b = b.datasets().find(path)->second;
    if (describe(in_a) != describe(in_b))
      diff.note(concat('/', path, ": ", describe(in_a), " and ", describe(in_b)));
    else if (in_a.xxh64 != in_b.xxh64)
      diff.note(concat('/', path, ": other values"));
    compare_attributes(diff, path, in_a.attributes, in_b.attributes);
  }
}

void compare_groups(GroupDiffs& diffs, const io::CheckpointFile& a, const io::CheckpointFile& b) {
  static const io::Attributes none;
  std::set<std::string> paths;
  for (const auto& [path, attributes] : a.groups()) paths.insert(path);
  for (const auto& [path, attributes] : b.groups()) paths.insert(path);
  for (const auto& path : paths) {
    auto& diff = diffs[top_of(path)];
    if (a.has_group(path) != b.has_group(path))
      diff.note(concat('/', path, " is only in ", a.has_group(path) ? "the first" : "the second"));
    compare_attributes(diff, path, a.has_group(path) ? a.attributes(path) : none,
                       b.has_group(path) ? b.attributes(path) : none);
  }
}

}  // namespace

int diff(const Path& path_a, const Path& path_b) {
  // Equal sums mean equal bytes only where the bytes match their sums.
  const auto a = io::open_checkpoint(path_a, io::Verify::full), b = io::open_checkpoint(path_b, io::Verify::full);
  std::cout << "first   " << a.path().string() << " (step " << a.step() << ")\nsecond  " << b.path().string()
            << " (step " << b.step() << ")\n";
  GroupDiffs diffs;
  compare_groups(diffs, a, b);
  compare_datasets(diffs, a, b);
  bool same = true;
  for (const auto& [group, d] : diffs) {
    const bool may_differ = group == "metrics" || group == "config";
    std::cout << '/' << group << ": ";
    if (d.differing == 0) {
      std::cout << "bit-identical (" << d.datasets << " datasets, " << d.attributes << " attributes)\n";
      continue;
    }
    std::cout << d.differing << " of " << d.datasets + d.attributes << " differ" << (may_differ ? " (they may)" : "")
              << ", first " << d.first << '\n';
    same = same && may_differ;
  }
  return same ? exit_code::kOk : 1;
}

}  // namespace apex::checkpoint_tools
