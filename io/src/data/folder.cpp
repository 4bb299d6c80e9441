// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
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

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

bool is_read(const std::string& extension) {
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Pictures too, of formats that are not read. Whatever else lies about (notes, archives) is nobody's sample.
bool is_other_picture(const std::string& extension) {
  static constexpr std::array kOthers = {".webp", ".gif",  ".bmp",  ".tif",  ".tiff", ".ppm",  ".pgm", ".pbm",
                                         ".jp2",  ".heic", ".heif", ".avif", ".jxl",  ".jfif", ".tga"};
  return std::find(kOthers.begin(), kOthers.end(), extension) != kOthers.end();
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

/// Collects the pictures below `folder`, and counts those of other formats by extension. `above` are the folders it
/// lies in, links resolved; one met again is a circle.
void collect(const fs::path& folder, std::vector<fs::path>& above, std::vector<fs::path>& files,
             std::map<std::string, std::int64_t>& left_out) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) fail_system("list", folder, error.value());
  if (std::find(above.begin(), above.end(), real) != above.end())
    fail(Kind::data, concat("'", folder.string(), "' is a link to a folder it lies in"));
  above.push_back(real);
  for (const auto& entry : entries_of(folder)) {
    // A link that leads nowhere is no folder; if it is named like a picture, reading it will say what is wrong.
    const std::string extension = extension_of(entry.path());
    if (entry.is_directory(error))
      collect(entry.path(), above, files, left_out);
    else if (is_read(extension))
      files.push_back(entry.path());
    else if (is_other_picture(extension))
      ++left_out[extension];
  }
  above.pop_back();
}

}  // namespace

std::string files::count_by_extension(const std::map<std::string, std::int64_t>& counts) {
  std::string out;
  for (const auto& [extension, count] : counts) out += concat(out.empty() ? "" : ", ", count, ' ', extension);
  return out;
}

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
    std::map<std::string, std::int64_t> others;
    collect(folder, above, files, others);
    if (files.empty())
      fail(Kind::data, concat("class folder '", folder.string(), "' has no .jpg, .jpeg or .png in it",
                              others.empty() ? ""
                                             : concat(", only ", count_by_extension(others),
                                                      ", which are not read; convert them")));
    for (const auto& [extension, count] : others) left_out_[extension] += count;
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
