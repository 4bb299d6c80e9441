// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>

#include "apex/io/data/dataset.hpp"

namespace apex::io {

/// Pictures and labels in the IDX format of MNIST (big-endian magic 0x00000803 with three sizes, 0x00000801 with one),
/// plain or gzip'd; held in memory.
class IdxDataset final : public Dataset {
 public:
  /// `channels` 3 repeats the gray value. Without `class_names` classes are called "0" to the largest label.
  /// @throws Kind::data naming the file: not there, not IDX of unsigned bytes, cut short, too long, damaged gzip,
  ///         different counts of pictures and labels, no samples, a label without a class name
  IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels, int channels = 1,
             std::vector<std::string> class_names = {});

  std::int64_t size() const override { return count_; }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int64_t label(std::int64_t i) const override;
  std::string sample_name(std::int64_t i) const override;
  std::string sample_key(std::int64_t i) const override;
  Image load(std::int64_t i) const override;
  std::optional<Size> fixed_size() const override { return Size{height_, width_}; }

  /// Mean and deviation over every pixel.
  Normalization measure() const;

 private:
  std::filesystem::path path_;
  std::int64_t count_ = 0;
  int height_ = 0;
  int width_ = 0;
  int channels_ = 1;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  std::vector<std::string> class_names_;
};

/// A folder per class, pictures at any depth below it. Classes are sorted by name, files by path (byte order), so every
/// machine counts alike. Takes .jpg, .jpeg and .png in any case; hidden files and folders are passed over; symbolic
/// links are followed, a circle of them is an error. Pictures of other formats are left out and counted.
class ImageFolder final : public Dataset {
 public:
  /// With `class_names` given (of the training part), class folders must be among them and take their numbers.
  /// @throws Kind::data naming the folder: not there, no class folders, a class folder without pictures, a class that
  ///         `class_names` does not have, links in a circle
  explicit ImageFolder(const std::filesystem::path& root, int channels = 3, std::vector<std::string> class_names = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int64_t label(std::int64_t i) const override;
  std::string sample_name(std::int64_t i) const override;
  std::string sample_key(std::int64_t i) const override;
  Image load(std::int64_t i) const override;
  ImagePart load_part(std::int64_t i, const ChooseBox& choose) const override;
  std::optional<std::vector<std::uint8_t>> encoded(std::int64_t i) const override;
  /// How many pictures of formats that are not read (.webp, .gif, .bmp, .tiff and others) were passed over, by
  /// extension in lower case.
  const std::map<std::string, std::int64_t>& left_out() const noexcept { return left_out_; }

 private:
  struct File {
    std::string path;  ///< below root_: "class/sub/name.jpg"
    std::int32_t label;
  };
  const File& file(std::int64_t i) const;

  std::filesystem::path root_;
  int channels_ = 3;
  std::vector<std::string> class_names_;
  std::vector<File> files_;
  std::map<std::string, std::int64_t> left_out_;
};

/// Pictures made from (seed, index) alone. Class i mod classes; each class has a coarse coloured pattern of its own,
/// under noise, so that a network can learn them and its loss falls.
class SyntheticDataset final : public Dataset {
 public:
  /// Samples first .. first+size of an endless row.
  /// @throws Kind::argument on sizes or classes below 1, channels other than 1 and 3
  SyntheticDataset(std::int64_t size, int classes, int channels, int height, int width, std::uint64_t seed,
                   std::int64_t first = 0);

  std::int64_t size() const override { return size_; }
  int channels() const override { return channels_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int64_t label(std::int64_t i) const override;
  std::string sample_name(std::int64_t i) const override;
  std::string sample_key(std::int64_t i) const override { return sample_name(i); }
  Image load(std::int64_t i) const override;
  std::optional<Size> fixed_size() const override { return Size{height_, width_}; }

 private:
  std::int64_t size_ = 0;
  std::int64_t first_ = 0;
  int channels_ = 3;
  int height_ = 0;
  int width_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<std::string> class_names_;
};

/// The bytes of a regular file. @throws Kind::data with Domain::system and errno, naming the file
std::vector<std::uint8_t> read_file(const std::filesystem::path& path);

}  // namespace apex::io
