// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "apex/core/error.hpp"
#include "apex/io/data/loader.hpp"
#include "apex/io/data/pack.hpp"
#include "apex/io/image/transform.hpp"
#include "file.hpp"
#include "hdf5.hpp"
#include "pack_seal.hpp"

// Contiguous datasets need their sizes when they are made, so packing takes two passes: the first learns every sample's
// size and checksum, the second writes. What has to be encoded anew waits in a spool file in between; what is copied as
// it is, is read twice, so that no pack needs its own size again on disk.

namespace apex::io {
using namespace files;
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Record {
  Bytes bytes;
  std::exception_ptr failure;
};

/// One part of the pack, as the first pass finds it.
struct Part {
  std::string name;
  std::shared_ptr<const Dataset> source;
  bool spooled = false;
  std::vector<std::int64_t> kept;  // indices in the source
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> labels;
  std::vector<std::uint32_t> crcs;
  std::string names;
  std::vector<std::int64_t> name_offsets{0};
};

/// Where the second pass has to put things.
struct Place {
  std::int64_t samples = 0, offsets = 0, labels = 0, crcs = 0, names = 0, name_offsets = 0;
};

std::uint32_t checksum(const Bytes& bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, bytes.data(), bytes.size()));
}

class Packer {
 public:
  Packer(const std::filesystem::path& path, const DatasetPair& pair, const PackOptions& options)
      : path_(path),
        options_(options),
        normalization_(pair.normalization),
        classes_(pair.train->class_names()),
        channels_(pair.train->channels()) {
    add_part("train", pair.train);
    if (pair.validation) add_part("val", pair.validation);
    if (options_.workers == -1) options_.workers = default_workers();
    if (options_.decoded) settle_size();
  }

  PackResult run() {
    for (auto& part : parts_) measure(part);
    TemporaryFile file(path_);
    const std::vector<Place> places = lay_out(file.path());
    std::vector<FileRange> samples;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      write_part(parts_[p], places[p], file);
      samples.push_back({places[p].samples, parts_[p].offsets.back()});
    }
    seal_pack(file.fd(), samples, file.path());
    file.commit();
    result_.bytes = static_cast<std::int64_t>(std::filesystem::file_size(path_));
    return result_;
  }

 private:
  void add_part(const std::string& name, std::shared_ptr<const Dataset> source) {
    Part part;
    part.name = name;
    part.source = std::move(source);
    part.spooled = options_.decoded || options_.resize > 0 || !part.source->encoded(0);
    total_ += 2 * part.source->size();
    parts_.push_back(std::move(part));
  }

  /// decoded: every picture gets this size.
  void settle_size() {
    if (options_.resize > 0) {
      size_ = {options_.resize, options_.resize};
      return;
    }
    const Image first = parts_.front().source->load(0);
    size_ = {first.height, first.width};
  }

  Bytes decoded(const Dataset& source, std::int64_t i) const {
    Image image = source.load(i);
    if (options_.resize > 0) {
      image = resize_shorter_side(image.view(), options_.resize);
      image = center_crop(image.view(), size_.width, size_.height);
    }
    if (image.width != size_.width || image.height != size_.height)
      fail(Kind::argument,
           concat(source.sample_name(i), " has ", image.width, 'x', image.height, " pixels, the first sample ",
                  size_.width, 'x', size_.height, ": decoded packs of mixed sizes need --resize"));
    return std::move(image.pixels);
  }

  Bytes encoded(const Dataset& source, std::int64_t i) const {
    auto bytes = source.encoded(i);
    if (bytes && options_.resize == 0) {
      if (options_.check) decode_image(*bytes, channels_, source.sample_name(i));
      return std::move(*bytes);
    }
    const Image image = source.load(i);
    const bool shrink = options_.resize > 0 && std::min(image.width, image.height) > options_.resize;
    if (shrink) return encode_jpeg(resize_shorter_side(image.view(), options_.resize).view(), options_.quality);
    return bytes ? std::move(*bytes) : encode_png(image.view());
  }

  /// Runs the first pass over samples begin .. begin + records.size() with all threads.
  void make_records(const Dataset& source, std::int64_t begin, std::vector<Record>& records) const {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t k = next++; k < records.size(); k = next++) {
        try {
          const std::int64_t i = begin + static_cast<std::int64_t>(k);
          records[k].bytes = options_.decoded ? decoded(source, i) : encoded(source, i);
        } catch (...) {
          records[k].failure = std::current_exception();
        }
      }
    };
    std::vector<std::jthread> threads;
    for (int t = 1; t < options_.workers; ++t) threads.emplace_back(work);
    work();
  }

  /// Counts and names a sample that may be left out; otherwise throws what it threw.
  void leave_out(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      const bool bad = error.kind() == Kind::data || error.kind() == Kind::damaged;
      if (!bad || error.domain() == Domain::system) throw;
      if (!options_.skip_bad) fail(error.kind(), concat(error.what(), " (--bad-sample skip leaves such pictures out)"));
      log_warning(concat("left out: ", error.what()));
    }
    ++result_.skipped;
  }

  void measure(Part& part) {
    constexpr std::int64_t kWindow = 256;
    for (std::int64_t begin = 0; begin < part.source->size(); begin += kWindow) {
      std::vector<Record> records(static_cast<std::size_t>(std::min(kWindow, part.source->size() - begin)));
      make_records(*part.source, begin, records);
      for (std::size_t k = 0; k < records.size(); ++k) {
        const std::int64_t i = begin + static_cast<std::int64_t>(k);
        if (records[k].failure)
          leave_out(records[k].failure);
        else
          add_record(part, i, records[k].bytes);
      }
      report(static_cast<std::int64_t>(records.size()));
    }
    if (part.kept.empty()) fail(Kind::data, concat("part '", part.name, "' has no usable samples"));
    (part.name == "train" ? result_.train_samples : result_.validation_samples) =
        static_cast<std::int64_t>(part.kept.size());
  }

  void add_record(Part& part, std::int64_t i, const Bytes& bytes) {
    part.kept.push_back(i);
    part.offsets.push_back(part.offsets.back() + static_cast<std::int64_t>(bytes.size()));
    part.labels.push_back(part.source->label(i));
    part.crcs.push_back(checksum(bytes));
    part.names += part.source->sample_key(i);
    part.name_offsets.push_back(static_cast<std::int64_t>(part.names.size()));
    if (!part.spooled) return;
    if (!spool_) spool_ = std::make_unique<TemporaryFile>(path_.string() + ".spool");
    write_all(spool_->fd(), bytes.data(), bytes.size(), spool_->path());
  }

  /// Makes the HDF5 file with all datasets allocated and gives their places.
  std::vector<Place> lay_out(const std::filesystem::path& path) const {
    const Hdf5Session session;
    const H5Id access = h5_access_without_locks(), creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_userblock(creation.get(), kPackUserBlock);
    const H5Id file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
    if (!file) fail(Kind::data, concat("HDF5 cannot create '", path.string(), "'"));
    bool ok = h5_write_attribute(file.get(), "format", "apex-pack") && h5_write_attribute(file.get(), "version", 1) &&
              h5_write_attribute(file.get(), "encoding", options_.decoded ? "u8" : "encoded") &&
              h5_write_attribute(file.get(), "channels", channels_) &&
              h5_write_attribute(file.get(), "mean", normalization_.mean) &&
              h5_write_attribute(file.get(), "stddev", normalization_.stddev) && write_classes(file.get());
    std::vector<Place> places;
    for (const auto& part : parts_) {
      const auto n = static_cast<hsize_t>(part.kept.size());
      const std::string group = "/" + part.name;
      Place place;
      if (options_.decoded) {
        place.samples = create(file.get(), group + "/images/pixels", H5T_STD_U8LE,
                               {n, static_cast<hsize_t>(size_.height), static_cast<hsize_t>(size_.width),
                                static_cast<hsize_t>(channels_)});
      } else {
        place.samples =
            create(file.get(), group + "/images/bytes", H5T_STD_U8LE, {static_cast<hsize_t>(part.offsets.back())});
        place.offsets = create(file.get(), group + "/images/offsets", H5T_STD_I64LE, {n + 1});
      }
      place.labels = create(file.get(), group + "/labels", H5T_STD_I64LE, {n});
      place.crcs = create(file.get(), group + "/crc", H5T_STD_U32LE, {n});
      place.names = create(file.get(), group + "/names/bytes", H5T_STD_U8LE, {part.names.size()});
      place.name_offsets = create(file.get(), group + "/names/offsets", H5T_STD_I64LE, {n + 1});
      places.push_back(place);
    }
    ok = ok && H5Fflush(file.get(), H5F_SCOPE_LOCAL) >= 0;
    if (!ok) fail(Kind::data, concat("HDF5 cannot write '", path.string(), "'; is the disk full?"));
    return places;
  }

  /// An allocated contiguous dataset; its offset in the file (0 when it is empty).
  std::int64_t create(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& sizes) const {
    const H5Id space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose);
    const H5Id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose), how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(links.get(), 1);
    H5Pset_layout(how.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(how.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(how.get(), H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(how.get(), false);
    const H5Id dataset(H5Dcreate2(file, name.c_str(), type, space.get(), links.get(), how.get(), H5P_DEFAULT),
                       H5Dclose);
    if (!dataset)
      fail(Kind::data, concat("HDF5 cannot create ", name, " in '", path_.string(), "'; is the disk full?"));
    if (std::find(sizes.begin(), sizes.end(), hsize_t{0}) != sizes.end()) return 0;
    const haddr_t offset = H5Dget_offset(dataset.get());
    if (offset == HADDR_UNDEF) fail(Kind::data, concat("HDF5 gave no room to ", name, " in '", path_.string(), "'"));
    return static_cast<std::int64_t>(offset);
  }

  bool write_classes(hid_t file) const {
    std::size_t width = 1;
    for (const auto& name : classes_) width = std::max(width, name.size());
    std::string text;
    for (const auto& name : classes_) text += name + std::string(width - name.size(), '\0');
    const hsize_t count = classes_.size();
    const H5Id type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Tset_size(type.get(), width);
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    const H5Id how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(how.get(), false);
    const H5Id dataset(H5Dcreate2(file, "/classes", type.get(), space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
                       H5Dclose);
    return dataset && H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) >= 0;
  }

  void write_part(const Part& part, const Place& place, const TemporaryFile& file) {
    const auto put = [&](const auto& table, std::int64_t offset) {
      write_at(file.fd(), table.data(), table.size() * sizeof table[0], offset, file.path());
    };
    if (!options_.decoded) put(part.offsets, place.offsets);
    put(part.labels, place.labels);
    put(part.crcs, place.crcs);
    put(part.names, place.names);
    put(part.name_offsets, place.name_offsets);
    for (std::size_t k = 0; k < part.kept.size(); ++k) {
      const std::int64_t bytes = part.offsets[k + 1] - part.offsets[k];
      const Bytes sample = part.spooled ? next_spooled(bytes) : reread(part, k, bytes);
      write_at(file.fd(), sample.data(), sample.size(), place.samples + part.offsets[k], file.path());
      report(1);
    }
  }

  Bytes next_spooled(std::int64_t bytes) {
    Bytes sample(static_cast<std::size_t>(bytes));
    read_at(spool_->fd(), sample.data(), sample.size(), spool_read_, spool_->path());
    spool_read_ += bytes;
    return sample;
  }

  Bytes reread(const Part& part, std::size_t k, std::int64_t bytes) const {
    auto sample = part.source->encoded(part.kept[k]);
    if (!sample || static_cast<std::int64_t>(sample->size()) != bytes || checksum(*sample) != part.crcs[k])
      fail(Kind::data, concat(part.source->sample_name(part.kept[k]), " was changed while it was being packed"));
    return std::move(*sample);
  }

  void report(std::int64_t more) {
    done_ += more;
    if (options_.progress) options_.progress(done_ / 2, total_ / 2);
  }

  std::filesystem::path path_;
  PackOptions options_;
  Normalization normalization_;
  std::vector<std::string> classes_;
  int channels_;
  Dataset::Size size_{0, 0};
  std::vector<Part> parts_;
  std::unique_ptr<TemporaryFile> spool_;
  std::int64_t spool_read_ = 0;
  std::int64_t done_ = 0, total_ = 0;  // both passes count
  PackResult result_;
};

}  // namespace

PackResult write_pack(const std::filesystem::path& path, const DatasetPair& pair, const PackOptions& options) {
  if (!pair.train) fail(Kind::argument, "write_pack: no training part");
  if (options.resize < 0) fail(Kind::argument, concat("resize is ", options.resize, ", must be at least 1"));
  if (options.quality < 1 || options.quality > 100)
    fail(Kind::argument, concat("quality is ", options.quality, ", takes 1 to 100"));
  if (options.workers < -1 || options.workers > 4096)
    fail(Kind::argument, concat("workers is ", options.workers, ", takes 0 to 4096, or -1 for the default"));
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    if (!std::filesystem::is_regular_file(path, error)) fail(Kind::data, concat("'", path.string(), "' is not a file"));
    if (!options.overwrite) fail(Kind::data, concat("'", path.string(), "' exists; use --force to replace it"));
  }
  return Packer(path, pair, options).run();
}

}  // namespace apex::io
