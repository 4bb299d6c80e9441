// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apex/io/image/image.hpp"

namespace apex::io {

/// Labelled pictures by index. Implementations are immutable: every function may be called from many threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  /// Channels of what load() returns: 1 or 3.
  virtual int channels() const = 0;
  /// Name of class k at position k.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// Class of sample i, in [0, class_names().size()).
  virtual std::int64_t label(std::int64_t i) const = 0;
  /// What messages call sample i, e.g. its path.
  virtual std::string sample_name(std::int64_t i) const = 0;
  /// Name of sample i inside the data set, the same wherever the data set lies: what val_split hashes.
  virtual std::string sample_key(std::int64_t i) const = 0;

  /// Sample i, decoded.
  /// @throws Kind::data with Domain::system when the bytes could not be read (worth a retry); Kind::data when they are
  ///         no picture; Kind::damaged when a checksum says they changed. Each names the sample.
  virtual Image load(std::int64_t i) const = 0;

  /// The part of sample i that `choose` asks for, or more (decode_image_part): what the loader reads. Unless a source
  /// can do with less, load() in full. @throws as load()
  virtual ImagePart load_part(std::int64_t i, const ChooseBox& choose) const;

  /// Sample i as a JPEG or PNG file's bytes, where the source has them so.
  virtual std::optional<std::vector<std::uint8_t>> encoded(std::int64_t i) const;

  /// Size that every sample has, where the source knows one.
  struct Size {
    int height;
    int width;
    friend bool operator==(const Size&, const Size&) = default;
  };
  virtual std::optional<Size> fixed_size() const { return std::nullopt; }
};

/// What to subtract and divide by, per channel, for pixels scaled to 0..1: (x / 255 - mean) / stddev.
struct Normalization {
  std::vector<double> mean;
  std::vector<double> stddev;
};

/// ImageNet's figures: for 3 channels (0.485 0.456 0.406, 0.229 0.224 0.225), for 1 their gray counterpart
/// (0.449, 0.226).
Normalization photo_normalization(int channels);

/// Training and validation part of one source. Both have the same classes in the same order.
struct DatasetPair {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  ///< null when the source has none and none was required
  Normalization normalization;
  std::string kind;     ///< "idx", "folder", "pack" or "synthetic"
  std::string warning;  ///< one line that a program shows once: pictures that a folder has and this library leaves out
};

struct SyntheticOptions {
  std::int64_t train_size = 1024;
  std::int64_t validation_size = 256;
  int classes = 10;
  int height = 224;
  int width = 224;
};

struct DatasetOptions {
  int channels = 0;        ///< 1 or 3; 0 takes the source's own (3 for folders)
  double val_split = 0;    ///< part of each class set aside for validation, for sources without such a part
  std::uint64_t seed = 0;  ///< of val_split and of synthetic data
  bool require_validation = true;
  std::filesystem::path class_names_file = {};  ///< IDX: a name per line; empty: "0", "1", ...
  SyntheticOptions synthetic = {};
};

/// Opens what lies at `path`:
///   - the word "synthetic": generated pictures, no files;
///   - an HDF5 file: a pack written by pack_images (apex/io/data/pack.hpp);
///   - a folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz: IDX;
///   - a folder with train/ and val/ class folders, or with class folders directly (then with val_split).
/// @throws Kind::data, one line: nothing there, an empty folder, a class folder without pictures, an empty file, a file
///         that is no pack, no validation part; Kind::damaged: a pack cut short; Kind::argument: options out of range,
///         or val_split although the source has a validation part
DatasetPair open_dataset(const std::filesystem::path& path, const DatasetOptions& options = {});

/// The samples `indices` of `base`, in that order. @throws Kind::argument on an index out of range
std::shared_ptr<const Dataset> subset(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> indices);

/// Splits every class by itself: of n samples, those with the floor(n * fraction + 1/2) smallest xxh64(sample_key,
/// seed) go to validation, but at least one stays for training. Order inside both parts is that of `base`. Adding or
/// removing other samples moves few, and where the data set lies moves none.
/// @throws Kind::argument unless 0 < fraction < 1; Kind::data when a part would be empty
DatasetPair split_dataset(std::shared_ptr<const Dataset> base, double fraction, std::uint64_t seed);

/// xxh64 over sizes, class names, labels and sample keys: equal on every rank, and on a resume, or the data differ.
std::uint64_t fingerprint(const Dataset& dataset);

}  // namespace apex::io
