// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apex/core/error.hpp"
#include "apex/core/unique_handle.hpp"
#include "apex/io/data/sources.hpp"
#include "file.hpp"

namespace apex::io {
using namespace files;
namespace {

using GzFile = UniqueHandle<gzFile, &gzclose_r>;

/// Reads plain and gzip'd files alike.
class IdxReader {
 public:
  explicit IdxReader(const std::filesystem::path& path) : path_(path) {
    UniqueFd fd = open_to_read(path);
    file_bytes_ = file_size(fd.get(), path);
    if (file_bytes_ == 0) fail(Kind::data, concat("'", path.string(), "' is empty; an IDX file was expected"));
    file_ = GzFile(gzdopen(fd.get(), "rb"));
    if (!file_) fail(Kind::exhausted, concat("no memory to read '", path.string(), "'"));
    fd.release();
    gzbuffer(file_.get(), 1 << 17);
  }

  /// The sizes in the header. `rank` of them must be there.
  std::vector<std::int64_t> header(int rank) {
    std::uint8_t magic[4];
    read(magic, 4);
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != 0x08 || magic[3] != rank)
      fail(Kind::data, concat("'", path_.string(), "' is not IDX with ", rank, rank == 1 ? " size" : " sizes",
                              " of unsigned bytes: it starts with ", hex(magic), ", expected 0000080", rank));
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank));
    for (auto& size : sizes) {
      std::uint8_t be[4];
      read(be, 4);
      size = std::int64_t{be[0]} << 24 | be[1] << 16 | be[2] << 8 | be[3];
    }
    return sizes;
  }

  /// The rest of the file: `count` bytes, no less and no more.
  std::vector<std::uint8_t> rest(std::int64_t count) {
    // Deflate shrinks at most 1032 times: a header that promises more is wrong, and no memory is taken for it.
    if (count > file_bytes_ * 1040) fail_short();
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
    read(bytes.data(), bytes.size());
    std::uint8_t more;
    if (gzread(file_.get(), &more, 1) == 1)
      fail(Kind::data, concat("'", path_.string(), "' is longer than its header says"));
    check_stream();
    return bytes;
  }

 private:
  void read(std::uint8_t* to, std::size_t bytes) {
    while (bytes > 0) {
      const int got = gzread(file_.get(), to, static_cast<unsigned>(std::min<std::size_t>(bytes, 1u << 30)));
      if (got <= 0) {
        check_stream();
        fail_short();
      }
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }

  void check_stream() {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) fail_system("read", path_);
    if (code == Z_BUF_ERROR) fail_short();
    if (code != Z_OK && code != Z_STREAM_END) fail(Kind::data, concat("'", path_.string(), "' is damaged: ", text));
  }

  [[noreturn]] void fail_short() { fail(Kind::data, concat("'", path_.string(), "' is cut short")); }

  static std::string hex(const std::uint8_t (&bytes)[4]) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const auto b : bytes) out += {digits[b >> 4], digits[b & 15]};
    return out;
  }

  std::filesystem::path path_;
  std::int64_t file_bytes_ = 0;
  GzFile file_;
};

}  // namespace

IdxDataset::IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels, int channels,
                       std::vector<std::string> class_names)
    : path_(images), channels_(channels), class_names_(std::move(class_names)) {
  if (channels != 1 && channels != 3)
    fail(Kind::argument, concat("IdxDataset: channels is ", channels, ", takes 1 or 3"));
  IdxReader image_file(images), label_file(labels);
  const auto sizes = image_file.header(3);
  const auto label_sizes = label_file.header(1);
  if (sizes[0] != label_sizes[0])
    fail(Kind::data, concat("'", images.string(), "' has ", sizes[0], " pictures, but '", labels.string(), "' has ",
                            label_sizes[0], " labels"));
  constexpr std::int64_t kLargestSide = 1 << 16;
  if (sizes[0] < 1 || sizes[1] < 1 || sizes[2] < 1 || sizes[1] > kLargestSide || sizes[2] > kLargestSide)
    fail(Kind::data, concat("'", images.string(), "' holds ", sizes[0], " pictures of ", sizes[1], 'x', sizes[2],
                            ": nothing to read"));
  count_ = sizes[0];
  height_ = static_cast<int>(sizes[1]);
  width_ = static_cast<int>(sizes[2]);
  // Counts and sides are below 2^32 and 2^17, so one product at a time stays inside 63 bits.
  const std::int64_t picture = std::int64_t{height_} * width_;
  if (count_ > INT64_MAX / picture) fail(Kind::data, concat("'", images.string(), "' is cut short"));
  pixels_ = image_file.rest(count_ * picture);
  labels_ = label_file.rest(count_);

  const int largest = *std::max_element(labels_.begin(), labels_.end());
  if (class_names_.empty())
    for (int c = 0; c <= largest; ++c) class_names_.push_back(std::to_string(c));
  if (largest >= static_cast<int>(class_names_.size()))
    fail(Kind::data, concat("'", labels.string(), "' has label ", largest, ", but there are only ", class_names_.size(),
                            " class names"));
}

std::int64_t IdxDataset::label(std::int64_t i) const { return labels_.at(static_cast<std::size_t>(i)); }

std::string IdxDataset::sample_name(std::int64_t i) const { return concat("sample ", i, " of '", path_.string(), "'"); }

std::string IdxDataset::sample_key(std::int64_t i) const { return std::to_string(i); }

Image IdxDataset::load(std::int64_t i) const {
  if (i < 0 || i >= count_) fail(Kind::argument, concat("IdxDataset: no sample ", i, " of ", count_));
  const std::size_t bytes = static_cast<std::size_t>(height_) * width_;
  Image out(width_, height_, channels_);
  const std::uint8_t* from = pixels_.data() + static_cast<std::size_t>(i) * bytes;
  if (channels_ == 1)
    std::memcpy(out.pixels.data(), from, bytes);
  else
    for (std::size_t p = 0; p < bytes; ++p) std::memset(out.pixels.data() + 3 * p, from[p], 3);
  return out;
}

Normalization IdxDataset::measure() const {
  std::int64_t histogram[256] = {};
  for (const auto p : pixels_) ++histogram[p];
  double sum = 0, squares = 0;
  for (int v = 0; v < 256; ++v) {
    const double scaled = v / 255.0, n = static_cast<double>(histogram[v]);
    sum += n * scaled;
    squares += n * scaled * scaled;
  }
  const double mean = sum / static_cast<double>(pixels_.size());
  const double variance = std::max(squares / static_cast<double>(pixels_.size()) - mean * mean, 0.0);
  const double deviation = variance > 0 ? std::sqrt(variance) : 1.0;  // one-coloured data: nothing to divide by
  return {std::vector<double>(channels_, mean), std::vector<double>(channels_, deviation)};
}

}  // namespace apex::io
