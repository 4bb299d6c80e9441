// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <map>
#include <system_error>

#include "apex/core/error.hpp"
#include "apex/io/data/pack.hpp"
#include "apex/io/data/sources.hpp"
#include "file.hpp"

namespace apex::io {
using namespace files;
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}
bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// "train-images" of rank 3: train-images-idx3-ubyte or, as some mirrors have it, train-images.idx3-ubyte, or with .gz.
fs::path find_idx(const fs::path& folder, const std::string& stem, int rank) {
  for (const char* mark : {"-", "."})
    for (const char* end : {"", ".gz"}) {
      const fs::path path = folder / concat(stem, mark, "idx", rank, "-ubyte", end);
      if (is_file(path)) return path;
    }
  return {};
}

std::vector<std::string> read_class_names(const fs::path& path) {
  std::vector<std::string> names;
  if (path.empty()) return names;
  std::ifstream in(path);
  if (!in) fail_system("open", path);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.empty()) fail(Kind::data, concat("'", path.string(), "' has no class names in it"));
  return names;
}

/// Cuts off a validation part where the source has none and one was asked for.
DatasetPair complete(DatasetPair pair, const fs::path& path, const DatasetOptions& options) {
  if (pair.validation && options.val_split > 0)
    fail(Kind::argument, concat("'", path.string(), "' has a validation part of its own; leave val_split out"));
  if (pair.validation) return pair;
  if (options.val_split > 0) {
    DatasetPair split = split_dataset(pair.train, options.val_split, options.seed);
    pair.train = split.train;
    pair.validation = split.validation;
  } else if (options.require_validation) {
    fail(Kind::data,
         concat("'", path.string(), "' has no validation part; add one (", pair.kind == "folder" ? "val/" : "",
                pair.kind == "idx" ? "t10k-*" : "", pair.kind == "pack" ? "pack val/ too" : "",
                ") or set a share of the samples aside with val_split"));
  }
  return pair;
}

DatasetPair open_synthetic(const DatasetOptions& options) {
  const auto& s = options.synthetic;
  const int channels = options.channels == 0 ? 3 : options.channels;
  if (options.val_split > 0)
    fail(Kind::argument, "synthetic data have a validation part of their own; leave val_split out");
  DatasetPair pair;
  pair.kind = "synthetic";
  pair.train = std::make_shared<SyntheticDataset>(s.train_size, s.classes, channels, s.height, s.width, options.seed);
  pair.validation = std::make_shared<SyntheticDataset>(s.validation_size, s.classes, channels, s.height, s.width,
                                                       options.seed, s.train_size);
  pair.normalization = {std::vector<double>(channels, 0.5), std::vector<double>(channels, 0.2)};
  return pair;
}

DatasetPair open_idx(const fs::path& folder, const DatasetOptions& options) {
  const int channels = options.channels == 0 ? 1 : options.channels;
  auto names = read_class_names(options.class_names_file);
  const auto open = [&](const std::string& stem) -> std::shared_ptr<const IdxDataset> {
    const fs::path images = find_idx(folder, stem + "-images", 3), labels = find_idx(folder, stem + "-labels", 1);
    if (images.empty() && labels.empty()) return nullptr;
    if (images.empty() || labels.empty())
      fail(Kind::data, concat("'", folder.string(), "' has ", stem, images.empty() ? "-labels" : "-images", ", but no ",
                              stem, images.empty() ? "-images-idx3-ubyte" : "-labels-idx1-ubyte", " (or .gz)"));
    return std::make_shared<const IdxDataset>(images, labels, channels, names);
  };
  const auto train = open("train");
  if (!train) fail(Kind::data, concat("'", folder.string(), "' has t10k-*, but no train-images-idx3-ubyte (or .gz)"));
  names = train->class_names();  // a label that training does not have is an error in the other part
  DatasetPair pair;
  pair.kind = "idx";
  pair.train = train;
  pair.validation = open("t10k");
  pair.normalization = train->measure();
  return complete(std::move(pair), folder, options);
}

bool has_idx(const fs::path& folder) {
  for (const char* stem : {"train", "t10k"})
    if (!find_idx(folder, concat(stem, "-images"), 3).empty() || !find_idx(folder, concat(stem, "-labels"), 1).empty())
      return true;
  return false;
}

DatasetPair open_folder(const fs::path& folder, const DatasetOptions& options) {
  const int channels = options.channels == 0 ? 3 : options.channels;
  const bool parts = is_folder(folder / "train");
  if (!parts && is_folder(folder / "val"))
    fail(Kind::data, concat("'", folder.string(), "' has val/, but no train/ beside it"));
  DatasetPair pair;
  std::map<std::string, std::int64_t> left_out;
  const auto open = [&](const fs::path& part, const std::vector<std::string>& names) {
    const auto pictures = std::make_shared<const ImageFolder>(part, channels, names);
    for (const auto& [extension, count] : pictures->left_out()) left_out[extension] += count;
    return pictures;
  };
  pair.kind = "folder";
  pair.train = open(parts ? folder / "train" : folder, {});
  if (parts && is_folder(folder / "val")) pair.validation = open(folder / "val", pair.train->class_names());
  pair.normalization = photo_normalization(channels);
  if (!left_out.empty())
    pair.warning = concat("'", folder.string(),
                          "': pictures of formats that are not read are left out: ", count_by_extension(left_out),
                          "; convert them to JPEG or PNG to use them");
  return complete(std::move(pair), folder, options);
}

DatasetPair open_pack(const fs::path& path, const DatasetOptions& options) {
  const auto train = std::make_shared<const PackedDataset>(path, "train", options.channels);
  DatasetPair pair;
  pair.kind = "pack";
  pair.train = train;
  pair.normalization = train->normalization();
  if (pack_has_part(path, "val")) pair.validation = std::make_shared<PackedDataset>(path, "val", options.channels);
  return complete(std::move(pair), path, options);
}

}  // namespace

DatasetPair open_dataset(const fs::path& path, const DatasetOptions& options) {
  if (options.channels != 0 && options.channels != 1 && options.channels != 3)
    fail(Kind::argument, concat("channels is ", options.channels, ", takes 1 or 3"));
  if (!(options.val_split >= 0 && options.val_split < 1))
    fail(Kind::argument, concat("val_split is ", options.val_split, ", must be at least 0 and below 1"));
  if (path == "synthetic") return open_synthetic(options);
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    fail(Kind::data, concat("data set '", path.string(), "' is not there"));
  if (error) fail_system("open data set", path, error.value());
  if (!fs::is_directory(status)) return open_pack(path, options);
  return has_idx(path) ? open_idx(path, options) : open_folder(path, options);
}

}  // namespace apex::io
