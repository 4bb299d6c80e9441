// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cstdio>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

std::string one(bool v) { return v ? "true" : "false"; }
std::string one(std::int64_t v) { return std::to_string(v); }
std::string one(double v) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", v);
  std::array<char, 40> brief{};
  std::snprintf(brief.data(), brief.size(), "%.10g", v);
  return std::strtod(brief.data(), nullptr) == v ? brief.data() : text.data();
}
std::string one(const std::string& v) { return '"' + v + '"'; }

}  // namespace

std::string to_text(const io::AttributeValue& value) {
  constexpr std::size_t kShown = 12;
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (requires { one(v); }) {
          return one(v);
        } else {
          std::string text = "[";
          for (std::size_t i = 0; i < v.size() && i < kShown; ++i)
            text += (i ? ", " : "") + one(static_cast<typename T::value_type>(v[i]));
          if (v.size() > kShown) text += concat(", ... ", v.size(), " in all");
          return text + ']';
        }
      },
      value);
}

std::string describe(const io::DatasetInfo& info) {
  return info.strings ? concat("strings ", info.sizes) : concat(info.dtype, ' ', info.sizes);
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 10'000) return concat(bytes, " B");
  std::array<char, 32> text{};
  if (bytes < 10'000'000)
    std::snprintf(text.data(), text.size(), "%.1f kB", static_cast<double>(bytes) / 1e3);
  else
    std::snprintf(text.data(), text.size(), "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text.data();
}

std::string top_of(const std::string& path) { return path.substr(0, path.find('/')); }

}  // namespace apex::checkpoint_tools
