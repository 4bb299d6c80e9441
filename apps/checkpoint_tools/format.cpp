// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

std::string one(bool v) { return v ? "true" : "false"; }
std::string one(std::int64_t v) { return std::to_string(v); }
std::string one(double v) { return to_text(v); }
std::string one(const std::string& v) { return '"' + v + '"'; }

}  // namespace

std::string to_text(double v) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", v);
  std::array<char, 40> brief{};
  std::snprintf(brief.data(), brief.size(), "%.10g", v);
  return std::strtod(brief.data(), nullptr) == v ? brief.data() : text.data();
}

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

Json to_json(const io::AttributeValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

Json to_json(const io::Attributes& attributes) {
  Json out = Json::object();
  for (const auto& [name, value] : attributes) out[name] = to_json(value);
  return out;
}

Json to_json(const std::string& path, const io::DatasetInfo& info) {
  Json out;
  out["path"] = '/' + path;
  out["dtype"] = info.strings ? "strings" : name_of(info.dtype);
  out["shape"] = std::vector<std::int64_t>(info.sizes.begin(), info.sizes.end());
  out["bytes"] = info.bytes;
  out["xxh64"] = hash_text(info.xxh64);
  out["attributes"] = to_json(info.attributes);
  return out;
}

void print(const Json& document) { std::cout << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n'; }

std::string describe(const io::DatasetInfo& info) {
  return info.strings ? concat("strings ", info.sizes) : concat(info.dtype, ' ', info.sizes);
}

std::string hash_text(std::uint64_t hash) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, hash);
  return text.data();
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

std::string bare(std::string path) {
  while (path.starts_with('/')) path.erase(0, 1);
  while (path.ends_with('/')) path.pop_back();
  return path;
}

bool is_at_or_below(const std::string& path, const std::string& group) {
  return group.empty() || (path.starts_with(group) && (path.size() == group.size() || path[group.size()] == '/'));
}

std::string top_of(const std::string& path) { return path.substr(0, path.find('/')); }

}  // namespace apex::checkpoint_tools
