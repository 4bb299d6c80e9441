// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "apex/core/device.hpp"

namespace apex::train {

/// Where the execution plans for `device` are kept: `option` is a file, "none" (the result is empty), or "auto", which
/// is a file named after the device in $XDG_CACHE_HOME/apex or ~/.cache/apex, else in `fallback`. The CPU has no plans.
std::filesystem::path plan_cache_path(const std::string& option, Device device, const std::filesystem::path& fallback);

/// A file with the execution plans that convolutions and products were timed for (kernels::export_plans), so that the
/// next run starts at once. It only ever saves time: a file that is missing is made, one that is damaged or made by
/// other versions or for another device is ignored with one line and replaced, one that cannot be written costs a
/// warning.
class PlanCache {
 public:
  /// What is kept, exchanged in tests.
  struct Source {
    std::function<std::string()> take;                    ///< all plans as bytes
    std::function<std::size_t(const std::string&)> give;  ///< takes bytes over; how many plans
    std::function<std::size_t()> chosen;                  ///< plans chosen by this process so far
  };

  /// @param path  empty: neither reads nor writes
  explicit PlanCache(std::filesystem::path path);
  PlanCache(std::filesystem::path path, Source source);

  /// Hands the file's plans over. @returns how many
  std::size_t load();
  /// The file's bytes; empty when there is none.
  std::string read() const;
  /// Hands plans over that came from a file. @returns how many
  std::size_t load(const std::string& bytes);
  /// Writes the file when plans were chosen since the last time; at once or not at all.
  void save();
  /// Whether this process writes the file: one of a job does. True at first.
  void set_writes(bool on) { writes_ = on; }

 private:
  std::filesystem::path path_;
  Source source_;
  bool writes_ = true;
  std::size_t saved_ = 0;  // plans chosen when it was written last
};

}  // namespace apex::train
