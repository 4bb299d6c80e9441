// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "apex/io/data/dataset.hpp"

namespace apex::io {

// A pack is one HDF5 file (default format, readable by h5dump and h5py) with a group per part:
//
//   /            attributes: format = "apex-pack", version = 1, encoding = "encoded" | "u8", channels (1 or 3),
//                mean, stddev (arrays of double, one value a channel)
//   /classes     strings [classes], in a dataset since an attribute holds no more than 64 KiB
//   /train/      and, where there is one, /val/
//     images/bytes     u8 [total]      encoding "encoded": the JPEG or PNG files one after the other
//     images/offsets   i64 [n + 1]     sample i is bytes offsets[i] .. offsets[i+1]
//     images/pixels    u8 [n,H,W,C]    encoding "u8", in place of bytes and offsets
//     labels           i64 [n]
//     crc              u32 [n]         zlib's crc32 of each sample's bytes
//     names/bytes      u8 [total], names/offsets i64 [n + 1]: sample keys, UTF-8
//
// The first 512 bytes are HDF5's user block: a seal of our own over all but the samples (which have checksums), so that
// a damaged file is found out before HDF5 reads it. A pack made by another program may go without.
//
// Every dataset is contiguous: a step reads samples by file offset with pread, not through HDF5.

/// One part of a pack.
class PackedDataset final : public Dataset {
 public:
  /// `part` is "train" or "val"; `channels` 0 takes the pack's own.
  /// @throws Kind::data: not there, empty, not HDF5, HDF5 but no pack, a newer version, no such part;
  ///         Kind::damaged: cut short, a broken seal, or figures that cannot be (falling offsets, labels without class)
  PackedDataset(const std::filesystem::path& path, const std::string& part, int channels = 0);
  ~PackedDataset() override;

  std::int64_t size() const override;
  int channels() const override;
  const std::vector<std::string>& class_names() const override;
  std::int64_t label(std::int64_t i) const override;
  std::string sample_name(std::int64_t i) const override;
  std::string sample_key(std::int64_t i) const override;
  /// @throws Kind::damaged naming the sample when its checksum differs
  Image load(std::int64_t i) const override;
  /// The checksum is of all bytes, whatever part is decoded.
  ImagePart load_part(std::int64_t i, const ChooseBox& choose) const override;
  std::optional<std::vector<std::uint8_t>> encoded(std::int64_t i) const override;
  std::optional<Size> fixed_size() const override;

  const Normalization& normalization() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether a pack has a part of that name. @throws as PackedDataset
bool pack_has_part(const std::filesystem::path& path, const std::string& part);

struct PackOptions {
  int resize = 0;  ///< shorter side to this where it is longer, re-encoded as JPEG; 0 keeps every byte (what is no
                   ///< file, such as IDX, becomes PNG)
  bool decoded =
      false;         ///< store pixels; pictures of different sizes need `resize` (shorter side, then the middle square)
  int quality = 90;  ///< of re-encoded JPEG
  bool check = true;      ///< decode what is copied, so that the pack holds no damaged picture
  bool skip_bad = false;  ///< leave damaged pictures out (named by a warning) instead of giving up
  bool overwrite = false;
  int workers = -1;  ///< threads that decode and encode; -1: default_workers()
  /// Called now and then, from the calling thread, with samples done and in all.
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct PackResult {
  std::int64_t train_samples = 0;
  std::int64_t validation_samples = 0;
  std::int64_t skipped = 0;
  std::int64_t bytes = 0;  ///< size of the file
};

/// Writes `pair` to `path`: into a temporary file beside it, fsync, rename. Not collective. Samples keep their order,
/// so a run on the pack meets the same pictures in the same batches as a run on its source (and without `resize` the
/// same bytes). @throws Kind::data: a sample cannot be used, or `path` exists and may not be overwritten;
///         Kind::exhausted: disk full; Kind::argument: options. On an error no file is left behind.
PackResult write_pack(const std::filesystem::path& path, const DatasetPair& pair, const PackOptions& options = {});

}  // namespace apex::io
