// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace apex::conformance {

/// Compares results with recorded values and keeps the worst element.
///
/// With `want` the recorded dataset each element must fulfil
///   |got - want| <= tolerance * max(|want|, s),   s = min(1, max |want| over the dataset), 1 if that maximum is 0,
/// so that small results are held to their own size. NaN agrees with NaN only, an infinity with the same infinity only.
class Comparison {
 public:
  /// `name` is the dataset's; `note` tells apart several results for it, e.g. the memory format.
  void numbers(const std::string& name, std::span<const double> want, std::span<const double> got, double tolerance,
               const std::string& note = {});
  /// One tolerance for each element.
  void numbers(const std::string& name, std::span<const double> want, std::span<const double> got,
               std::span<const double> tolerances, const std::string& note = {});
  void strings(const std::string& name, const std::vector<std::string>& want, const std::vector<std::string>& got);

  /// Adds what `other` compared.
  void merge(const Comparison& other);

  bool passed() const { return compared_ > 0 && outside_ == 0 && incomparable_.empty(); }
  /// error / allowed of the worst element; negative before anything was compared.
  double worst_ratio() const { return worst_.ratio; }
  std::size_t compared() const { return compared_; }
  /// The case says nothing about results of this type, and why. Neither a pass nor a failure.
  void set_incomparable(const std::string& why) { incomparable_ = why; }
  bool incomparable() const { return !incomparable_.empty(); }
  /// One line: the worst element, its error and what was allowed; for a failure how many elements are outside.
  std::string summary() const;

 private:
  struct Worst {
    double ratio = -1;  ///< error / allowed
    double error = 0, allowed = 0, tolerance = 0;
    std::string text;
  };
  void take(const Worst& candidate);

  std::size_t compared_ = 0, outside_ = 0;
  Worst worst_;
  std::string incomparable_;
};

}  // namespace apex::conformance
