// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/plan_cache.hpp"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "apex/core/error.hpp"
#include "apex/kernels/backend.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::train {
namespace fs = std::filesystem;
namespace {

std::string file_name(Device device) {
  std::string name = "plans";
#ifdef APEX_HAS_CUDA
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device.index) == cudaSuccess) name += concat('_', properties.name);
#else
  static_cast<void>(device);
#endif
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name + ".bin";
}

fs::path cache_directory(const fs::path& fallback) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return fs::path(cache) / "apex";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache" / "apex";
  return fallback;
}

}  // namespace

fs::path plan_cache_path(const std::string& option, Device device, const fs::path& fallback) {
  if (option == "none" || !device.is_cuda()) return {};
  return option == "auto" ? cache_directory(fallback) / file_name(device) : fs::path(option);
}

PlanCache::PlanCache(fs::path path)
    : PlanCache(std::move(path), {.take = [] { return kernels::export_plans(); },
                                  .give = [](const std::string& bytes) { return kernels::import_plans(bytes); },
                                  .chosen = [] { return kernels::plans_chosen(); }}) {}

PlanCache::PlanCache(fs::path path, Source source) : path_(std::move(path)), source_(std::move(source)) {}

std::string PlanCache::read() const {
  if (path_.empty()) return {};
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream bytes;
  if (file) bytes << file.rdbuf();  // what cannot be read (a directory opens, too) is as good as not there
  return bytes.str();
}

std::size_t PlanCache::load() { return load(read()); }

std::size_t PlanCache::load(const std::string& bytes) {
  if (bytes.empty()) return 0;
  const std::size_t plans = source_.give(bytes);
  if (plans == 0 && writes_)
    log_warning(
        concat("--plan-cache: '", path_.string(),
               "' is damaged, or was made by other library versions or for another GPU; plans are chosen anew"));
  return plans;
}

void PlanCache::save() {
  if (path_.empty() || !writes_ || source_.chosen() == saved_) return;
  const std::size_t chosen = source_.chosen();
  const fs::path temporary = path_.string() + concat(".", ::getpid(), ".tmp");
  std::error_code error;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << source_.take() << std::flush;
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(temporary, path_, error);
  saved_ = chosen;  // not tried again for the same plans
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  log_warning(concat("--plan-cache: cannot write '", path_.string(), "' (", error.message(),
                     "); the next run chooses plans anew"));
}

}  // namespace apex::train
