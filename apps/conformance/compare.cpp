// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace apex::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double error_of(double want, double got) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : kInfinity;
  if (std::isinf(want) || std::isinf(got)) return want == got ? 0 : kInfinity;
  return std::abs(got - want);
}

double scale_of(std::span<const double> want) {
  double largest = 0;
  for (const double value : want)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest == 0 ? 1 : std::min(1.0, largest);
}

std::string describe(const std::string& name, std::size_t index, const std::string& note) {
  std::ostringstream out;
  out << name << '[' << index << ']';
  if (!note.empty()) out << " (" << note << ')';
  return out.str();
}

}  // namespace

void Comparison::take(const Worst& candidate) {
  ++compared_;
  if (candidate.ratio > 1) ++outside_;
  if (candidate.ratio > worst_.ratio) worst_ = candidate;
}

void Comparison::numbers(const std::string& name, std::span<const double> want, std::span<const double> got,
                         double tolerance, const std::string& note) {
  numbers(name, want, got, std::vector<double>(want.size(), tolerance), note);
}

void Comparison::numbers(const std::string& name, std::span<const double> want, std::span<const double> got,
                         std::span<const double> tolerances, const std::string& note) {
  if (want.size() != got.size()) {
    std::ostringstream out;
    out << name << " has " << want.size() << " recorded values and " << got.size() << " results";
    take({kInfinity, kInfinity, 0, 0, out.str()});
    return;
  }
  const double scale = scale_of(want);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = error_of(want[i], got[i]);
    const double allowed = tolerances[i] * (std::isfinite(want[i]) ? std::max(std::abs(want[i]), scale) : 1.0);
    const double ratio = error == 0 ? 0 : error / allowed;  // tolerance 0 asks for equality
    if (ratio <= worst_.ratio && ratio <= 1) {
      ++compared_;
      continue;
    }
    std::ostringstream out;
    out.precision(12);
    out << describe(name, i, note) << ": want " << want[i] << ", got " << got[i];
    take({ratio, error, allowed, tolerances[i], out.str()});
  }
}

void Comparison::strings(const std::string& name, const std::vector<std::string>& want,
                         const std::vector<std::string>& got) {
  for (std::size_t i = 0; i < std::max(want.size(), got.size()); ++i) {
    const std::string wanted = i < want.size() ? "'" + want[i] + "'" : "nothing";
    const std::string found = i < got.size() ? "'" + got[i] + "'" : "nothing";
    const double ratio = wanted == found ? 0 : kInfinity;
    take({ratio, ratio, 0, 0, describe(name, i, {}) + ": want " + wanted + ", got " + found});
  }
}

void Comparison::merge(const Comparison& other) {
  compared_ += other.compared_;
  outside_ += other.outside_;
  if (other.worst_.ratio > worst_.ratio) worst_ = other.worst_;
  if (incomparable_.empty()) incomparable_ = other.incomparable_;
}

std::string Comparison::summary() const {
  if (incomparable()) return incomparable_;
  if (compared_ == 0) return "nothing was compared";
  std::ostringstream out;
  out.precision(3);
  if (outside_ > 0) out << outside_ << " of " << compared_ << " values outside; ";
  out << "worst error " << worst_.error << ", allowed " << worst_.allowed << " (tolerance " << worst_.tolerance << "), "
      << worst_.text;
  return out.str();
}

}  // namespace apex::conformance
