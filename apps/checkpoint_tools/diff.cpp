// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

constexpr std::size_t kShown = 20;

/// What tells two checkpoints apart in one top-level group, the root's own entries counting as group "".
struct GroupDiff {
  int datasets = 0;                      ///< in either
  int attributes = 0;                    ///< in either, of groups and datasets
  std::vector<std::string> differences;  ///< a line for each dataset and attribute that differs
  int within = 0;                        ///< datasets that differ, but within the tolerance
  double largest = 0;                    ///< difference of values in this group
  std::string largest_at;

  void note(std::string what) { differences.push_back(std::move(what)); }
};

class Comparison {
 public:
  Comparison(const io::CheckpointFile& a, const io::CheckpointFile& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    for (const auto& path : options.ignored) ignored_.push_back(bare(path));
    groups();
    datasets();
  }
  const std::map<std::string, GroupDiff>& result() const { return diffs_; }

 private:
  double atol() const { return options_.atol.value_or(0); }
  double rtol() const { return options_.rtol.value_or(0); }
  bool is_ignored(const std::string& path) const {
    // "/" is the root's own attributes; everything lies below it.
    return std::any_of(ignored_.begin(), ignored_.end(), [&](const std::string& group) {
      return group.empty() ? path.empty() : is_at_or_below(path, group);
    });
  }

  template <class Map>
  static std::set<std::string> names(const Map& a, const Map& b) {
    std::set<std::string> all;
    for (const auto& [name, value] : a) all.insert(name);
    for (const auto& [name, value] : b) all.insert(name);
    return all;
  }
  static std::string only_in(bool first) { return first ? " is only in the first" : " is only in the second"; }

  void groups() {
    static const io::Attributes none;
    for (const auto& path : names(a_.groups(), b_.groups())) {
      if (is_ignored(path)) continue;
      auto& diff = diffs_[top_of(path)];
      if (a_.has_group(path) != b_.has_group(path)) diff.note(concat('/', path, only_in(a_.has_group(path))));
      attributes(diff, path, a_.has_group(path) ? a_.attributes(path) : none,
                 b_.has_group(path) ? b_.attributes(path) : none);
    }
  }

  void attributes(GroupDiff& diff, const std::string& path, const io::Attributes& a, const io::Attributes& b) const {
    for (const auto& name : names(a, b)) {
      ++diff.attributes;
      const auto in_a = a.find(name), in_b = b.find(name);
      const std::string where = concat('/', path, '@', name);
      if (in_a == a.end() || in_b == b.end())
        diff.note(where + only_in(in_b == b.end()));
      else if (!equal(in_a->second, in_b->second))
        diff.note(concat(where, ": ", to_text(in_a->second), " and ", to_text(in_b->second)));
    }
  }

  bool equal(const io::AttributeValue& a, const io::AttributeValue& b) const {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    if (!options_.tolerant() || x == nullptr || y == nullptr) return a == b;
    return std::abs(*x - *y) <= atol() + rtol() * std::abs(*y) || *x == *y || (std::isnan(*x) && std::isnan(*y));
  }

  void datasets() {
    for (const auto& path : names(a_.datasets(), b_.datasets())) {
      if (is_ignored(path)) continue;
      auto& diff = diffs_[path.find('/') == path.npos ? "" : top_of(path)];
      ++diff.datasets;
      if (!a_.has_dataset(path) || !b_.has_dataset(path)) {
        diff.note(concat('/', path, only_in(a_.has_dataset(path))));
        continue;
      }
      const auto& in_a = a_.datasets().find(path)->second;
      const auto& in_b = b_.datasets().find(path)->second;
      if (describe(in_a) != describe(in_b))
        diff.note(concat('/', path, ": ", describe(in_a), " and ", describe(in_b)));
      else if (in_a.xxh64 != in_b.xxh64)
        values(diff, path, in_a);
      attributes(diff, path, in_a.attributes, in_b.attributes);
    }
  }

  void values(GroupDiff& diff, const std::string& path, const io::DatasetInfo& info) const {
    if (info.strings) {
      strings(diff, path);
      return;
    }
    const auto d = distance(a_.read(path), b_.read(path), atol(), rtol());
    if (d.largest > diff.largest) {
      diff.largest = d.largest;
      diff.largest_at = '/' + path;
    }
    if (options_.tolerant() && d.outside == 0) {
      ++diff.within;
    } else if (d.unequal == 0) {
      diff.note(concat('/', path, ": equal values of other bits (zeros of another sign, or NaNs)"));
    } else {
      diff.note(concat('/', path, ": ", options_.tolerant() ? d.outside : d.unequal, " of ", element_count(info.sizes),
                       " values differ, by at most ", to_text(d.largest)));
    }
  }

  void strings(GroupDiff& diff, const std::string& path) const {
    const auto a = a_.read_strings(path), b = b_.read_strings(path);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;
      diff.note(concat('/', path, '[', i, "]: \"", a[i], "\" and \"", b[i], '"'));
      return;
    }
    diff.note(concat('/', path, ": the same strings, stored in another width"));
  }

  const io::CheckpointFile &a_, &b_;
  const DiffOptions& options_;
  std::vector<std::string> ignored_;
  std::map<std::string, GroupDiff> diffs_;
};

/// Times and paths of a run.
bool may_differ(const std::string& group) { return group == "metrics" || group == "config"; }

void print_lines(const std::string& group, const GroupDiff& d) {
  std::cout << '/' << group << ": ";
  if (d.differences.empty() && d.within == 0) {
    std::cout << "bit-identical (" << d.datasets << " datasets, " << d.attributes << " attributes)\n";
    return;
  }
  if (d.differences.empty())
    std::cout << "equal within the tolerance, " << d.within << " of " << d.datasets << " datasets not in all bits";
  else
    std::cout << d.differences.size() << " of " << d.datasets + d.attributes << " differ"
              << (may_differ(group) ? " (they may)" : "");
  if (!d.largest_at.empty()) std::cout << ", largest difference " << to_text(d.largest) << " in " << d.largest_at;
  std::cout << '\n';
  for (std::size_t i = 0; i < std::min(kShown, d.differences.size()); ++i)
    std::cout << "  " << d.differences[i] << '\n';
  if (d.differences.size() > kShown) std::cout << "  ... and " << d.differences.size() - kShown << " more\n";
}

Json json_of(const std::string& group, const GroupDiff& d) {
  Json out;
  out["group"] = '/' + group;
  out["equal"] = d.differences.empty();
  out["may_differ"] = may_differ(group);
  out["datasets"] = d.datasets;
  out["attributes"] = d.attributes;
  out["within_tolerance"] = d.within;
  out["largest_difference"] = std::isfinite(d.largest) ? Json(d.largest) : Json("inf");
  out["largest_difference_at"] = d.largest_at.empty() ? Json() : Json(d.largest_at);
  out["differences"] = d.differences;
  return out;
}

}  // namespace

int diff(const Path& path_a, const Path& path_b, const DiffOptions& options) {
  // Equal sums mean equal bytes only where the bytes match their sums.
  const auto a = io::open_checkpoint(path_a, io::Verify::full), b = io::open_checkpoint(path_b, io::Verify::full);
  const Comparison comparison(a, b, options);
  bool same = true;
  for (const auto& [group, d] : comparison.result()) same = same && (d.differences.empty() || may_differ(group));
  if (options.json) {
    Json document;
    document["first"] = a.path().string();
    document["second"] = b.path().string();
    document["equal"] = same;
    document["groups"] = Json::array();
    for (const auto& [group, d] : comparison.result()) document["groups"].push_back(json_of(group, d));
    print(document);
  } else {
    std::cout << "first   " << a.path().string() << " (step " << a.step() << ")\nsecond  " << b.path().string()
              << " (step " << b.step() << ")\n";
    for (const auto& [group, d] : comparison.result()) print_lines(group, d);
  }
  return same ? exit_code::kOk : 1;
}

}  // namespace apex::checkpoint_tools
