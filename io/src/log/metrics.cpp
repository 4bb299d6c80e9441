// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/log/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "../data/file.hpp"
#include "apex/core/error.hpp"
#include "apex/io/data/sources.hpp"

namespace apex::io {
using namespace files;
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const MetricValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return std::isfinite(*number) ? Json(*number) : Json(nullptr);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  return std::get<std::string>(value);
}

/// The lines of `text` that stay on a resume after `step`: whole ones whose step is not beyond it. A line that is no
/// record of ours stays too, unless it is the torn end of the file.
std::string kept_lines(std::string_view text, std::int64_t step) {
  std::string kept;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const Json record = Json::parse(line, nullptr, false);
    const bool later = record.is_object() && record.contains("step") && record["step"].is_number_integer() &&
                       record["step"].get<std::int64_t>() > step;
    if (!later) kept.append(line).push_back('\n');
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step) : path_(path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const bool goes_on = resume_step >= 0 && std::filesystem::exists(path, error);
  if (goes_on) {
    const auto bytes = read_file(path);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::string kept = kept_lines(text, resume_step);
    if (kept != text) {
      TemporaryFile file(path);
      write_all(file.fd(), kept.data(), kept.size(), file.path());
      file.commit();
    }
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (goes_on ? 0 : O_TRUNC), 0666);
  if (fd_ < 0) fail_system("open metrics file", path);
}

MetricsWriter::~MetricsWriter() { ::close(fd_); }

void MetricsWriter::write(std::int64_t step, const std::string& kind, std::span<const MetricField> fields) {
  Json record;
  record["step"] = step;
  record["kind"] = kind;
  for (const auto& [name, value] : fields) record[name] = to_json(value);
  // Text that is no UTF-8 (a path, say) gets replacement characters rather than ending the run.
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  write_all(fd_, line.data(), line.size(), path_);
}

}  // namespace apex::io
