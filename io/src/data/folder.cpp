// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cctype>
#include <system_error>

#include "apex/core/error.hpp"
#include "apex/io/data/sources.hpp"
#include "file.hpp"

namespace apex::io {
using namespace files;
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool has_image_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// What is in a folder, without hidden entries, in byte order of the names. An entry knows its own kind from the
/// listing: no file is asked for it, which counts where there are millions on a parallel file system.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error))
    if (!is_hidden(it->path())) entries.push_back(*it);
  if (error) fail_system("list", folder, error.value());
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.path().native() < b.path().native(); });
  return entries;
}

/// Collects the pictures below `folder`. `above` are the folders it lies in, links resolved; one met again is a circle.
void collect(const fs::path& folder, std::vector<fs::path>& above, std::vector<fs::path>& files) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) fail_system("list", folder, error.value());
  if (std::find(above.begin(), above.end(), real) != above.end())
    fail(Kind::data, concat("'", folder.string(), "' is a link to a folder it lies in"));
  above.push_back(real);
  for (const auto& entry : entries_of(folder)) {
    // A link that leads nowhere is no folder; if it is named like a picture, reading it will say what is wrong.
    if (entry.is_directory(error))
      collect(entry.path(), above, files);
    else if (has_image_extension(entry.path()))
      files.push_back(entry.path());
  }
  above.pop_back();
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& root, int channels, std::vector<std::string> class_names)
    : root_(root), channels_(channels), class_names_(std::move(class_names)) {
  if (channels != 1 && channels != 3)
    fail(Kind::argument, concat("ImageFolder: channels is ", channels, ", takes 1 or 3"));
  std::error_code error;
  if (!fs::is_directory(root, error))
    fail(Kind::data, concat("'", root.string(), "' is ", fs::exists(root, error) ? "not a folder" : "not there",
                            "; a folder with a sub-folder for each class was expected"));
  std::vector<fs::path> folders;
  for (const auto& entry : entries_of(root))
    if (entry.is_directory(error)) folders.push_back(entry.path());
  if (folders.empty()) fail(Kind::data, concat("'", root.string(), "' has no class folders"));

  const bool own_classes = class_names_.empty();
  for (const auto& folder : folders) {
    const std::string name = folder.filename().string();
    if (own_classes) class_names_.push_back(name);
    const auto known = std::find(class_names_.begin(), class_names_.end(), name);
    if (known == class_names_.end())
      fail(Kind::data, concat("'", folder.string(), "' is a class that the training part does not have"));
    std::vector<fs::path> files, above;
    collect(folder, above, files);
    if (files.empty())
      fail(Kind::data, concat("class folder '", folder.string(), "' has no .jpg, .jpeg or .png in it"));
    // Sorted as whole relative paths, so the order does not depend on how deep the files lie.
    std::vector<std::string> paths;
    for (const auto& path : files) paths.push_back(path.lexically_relative(root).generic_string());
    std::sort(paths.begin(), paths.end());
    for (auto& path : paths)
      files_.push_back({std::move(path), static_cast<std::int32_t>(known - class_names_.begin())});
  }
}

const ImageFolder::File& ImageFolder::file(std::int64_t i) const {
  if (i < 0 || i >= size()) fail(Kind::argument, concat("ImageFolder: no sample ", i, " of ", size()));
  return files_[static_cast<std::size_t>(i)];
}

std::int64_t ImageFolder::label(std::int64_t i) const { return file(i).label; }
std::string ImageFolder::sample_name(std::int64_t i) const { return concat("'", (root_ / file(i).path).string(), "'"); }
std::string ImageFolder::sample_key(std::int64_t i) const { return file(i).path; }

Image ImageFolder::load(std::int64_t i) const {
  const auto bytes = read_file(root_ / file(i).path);
  return decode_image(bytes, channels_, sample_name(i));
}

ImagePart ImageFolder::load_part(std::int64_t i, const ChooseBox& choose) const {
  const auto bytes = read_file(root_ / file(i).path);
  return decode_image_part(bytes, channels_, sample_name(i), choose);
}

std::optional<std::vector<std::uint8_t>> ImageFolder::encoded(std::int64_t i) const {
  return read_file(root_ / file(i).path);
}

}  // namespace apex::io
