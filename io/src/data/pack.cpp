// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/pack.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "apex/core/error.hpp"
#include "file.hpp"
#include "hdf5.hpp"
#include "pack_seal.hpp"

namespace apex::io {
using namespace files;
namespace {

constexpr std::uint8_t kHdf5Signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
constexpr std::int64_t kVersion = 1;

/// Where a contiguous dataset lies in the file.
struct Extent {
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes;
};

/// A pack while its tables are read. Everything it says about the file is checked: it may come from anywhere.
class PackFile {
 public:
  explicit PackFile(const std::filesystem::path& path) : path_(path), fd_(open_to_read(path)) {
    file_bytes_ = file_size(fd_.get(), path);
    if (file_bytes_ == 0) fail(Kind::data, concat("'", path.string(), "' is empty"));
    if (pack_is_sealed(fd_.get(), path))
      check_pack_seal(fd_.get(), path);
    else if (const auto at = hdf5_signature(); at != 0)  // our packs without a seal have no user block
      fail(Kind::data, concat("'", path.string(), at < 0 ? "' is not an HDF5 file" : "' is HDF5, but not a pack",
                              "; a pack written by pack_images was expected"));
    file_ = H5Id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, h5_access_without_locks().get()), H5Fclose);
    if (!file_) fail_damaged("HDF5 cannot open it; it is cut short or damaged");
    if (h5_string_attribute(file_.get(), "format") != "apex-pack")
      fail(Kind::data, concat("'", path.string(), "' is HDF5, but not a pack written by pack_images"));
    const auto version = h5_integer_attribute(file_.get(), "version");
    if (!version || *version < 1) fail_damaged("it has no version");
    if (*version > kVersion)
      fail(Kind::data,
           concat("'", path.string(), "' is a pack of version ", *version, ", newer than this program's ", kVersion));
  }

  hid_t id() const { return file_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }
  [[noreturn]] void fail_damaged(std::string_view what) const {
    fail(Kind::damaged, concat("pack '", path_.string(), "' is damaged: ", what));
  }

  /// The place of dataset `name`, which must have this type and rank, lie in one piece, and inside the file.
  Extent locate(const std::string& name, hid_t type, int rank) const {
    if (!h5_exists(file_.get(), name)) fail_damaged(concat("it has no ", name));
    const H5Id dataset(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    const H5Id stored(dataset ? H5Dget_type(dataset.get()) : -1, H5Tclose);
    const H5Id space(dataset ? H5Dget_space(dataset.get()) : -1, H5Sclose);
    const H5Id plist(dataset ? H5Dget_create_plist(dataset.get()) : -1, H5Pclose);
    if (!stored || !space || !plist || H5Tequal(stored.get(), type) <= 0 ||
        H5Sget_simple_extent_ndims(space.get()) != rank || H5Pget_layout(plist.get()) != H5D_CONTIGUOUS ||
        H5Pget_external_count(plist.get()) != 0)
      fail_damaged(concat(name, " is not stored as a pack has it"));
    std::vector<hsize_t> sizes(static_cast<std::size_t>(rank));
    H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
    Extent extent;
    hsize_t left = static_cast<hsize_t>(file_bytes_) / H5Tget_size(type);
    bool empty = false;
    for (const hsize_t size : sizes) {
      empty = empty || size == 0;
      if (size > left) fail_damaged(concat(name, " does not fit into the file"));
      if (size > 0) left /= size;
      extent.sizes.push_back(static_cast<std::int64_t>(size));
    }
    if (empty) return extent;
    const haddr_t offset = H5Dget_offset(dataset.get());
    std::int64_t bytes = static_cast<std::int64_t>(H5Tget_size(type));
    for (const auto size : extent.sizes) bytes *= size;
    if (offset == HADDR_UNDEF || offset > static_cast<haddr_t>(file_bytes_ - bytes))
      fail_damaged(concat(name, " reaches beyond the end of the file"));
    extent.offset = static_cast<std::int64_t>(offset);
    return extent;
  }

  template <class T>
  std::vector<T> read_table(const std::string& name, hid_t type, std::int64_t expected) const {
    const Extent extent = locate(name, type, 1);
    if (expected >= 0 && extent.sizes[0] != expected)
      fail_damaged(concat(name, " has ", extent.sizes[0], " entries, expected ", expected));
    std::vector<T> table(static_cast<std::size_t>(extent.sizes[0]));
    read_at(fd_.get(), table.data(), table.size() * sizeof(T), extent.offset, path_);
    return table;
  }

  /// Offsets of n records that lie one after the other in `total` bytes.
  std::vector<std::int64_t> read_offsets(const std::string& name, std::int64_t n, std::int64_t total) const {
    auto offsets = read_table<std::int64_t>(name, H5T_STD_I64LE, n + 1);
    if (offsets.front() != 0 || offsets.back() != total || !std::is_sorted(offsets.begin(), offsets.end()))
      fail_damaged(concat(name, " does not divide its bytes"));
    return offsets;
  }

  std::vector<std::string> read_classes() const {
    const H5Id dataset(h5_exists(file_.get(), "/classes") ? H5Dopen2(file_.get(), "/classes", H5P_DEFAULT) : -1,
                       H5Dclose);
    const H5Id type(dataset ? H5Dget_type(dataset.get()) : -1, H5Tclose);
    const H5Id space(dataset ? H5Dget_space(dataset.get()) : -1, H5Sclose);
    if (!type || !space || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
        H5Sget_simple_extent_ndims(space.get()) != 1)
      fail_damaged("it has no class names");
    const hssize_t count = H5Sget_simple_extent_npoints(space.get());
    const std::size_t width = H5Tget_size(type.get());
    if (count < 1 || width < 1 || static_cast<std::uint64_t>(count) > static_cast<std::uint64_t>(file_bytes_) / width)
      fail_damaged("its class names do not fit into the file");
    std::string text(static_cast<std::size_t>(count) * width, '\0');
    if (H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) < 0)
      fail_damaged("its class names cannot be read");
    std::vector<std::string> names;
    for (hssize_t c = 0; c < count; ++c) {
      const std::string padded = text.substr(static_cast<std::size_t>(c) * width, width);
      names.push_back(padded.substr(0, padded.find('\0')));
    }
    return names;
  }

 private:
  /// Where HDF5's signature stands: 0, or behind a user block at 512, 1024, 2048, ...; -1: nowhere.
  std::int64_t hdf5_signature() const {
    for (std::int64_t at = 0; at + 8 <= file_bytes_; at = at == 0 ? 512 : 2 * at) {
      std::uint8_t start[8] = {};
      read_at(fd_.get(), start, 8, at, path_);
      if (std::equal(std::begin(start), std::end(start), std::begin(kHdf5Signature))) return at;
    }
    return -1;
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t file_bytes_ = 0;
  H5Id file_;
};

}  // namespace

struct PackedDataset::Impl {
  std::filesystem::path path;
  std::string part;
  UniqueFd fd;
  int stored_channels = 3;
  int channels = 3;
  bool decoded = false;
  Size size{0, 0};                    // decoded
  std::int64_t data_offset = 0;       // of the samples in the file
  std::vector<std::int64_t> offsets;  // encoded
  std::vector<std::int64_t> labels;
  std::vector<std::uint32_t> crcs;
  std::vector<std::uint8_t> names;
  std::vector<std::int64_t> name_offsets;
  std::vector<std::string> classes;
  Normalization normalization;

  std::size_t picture_bytes() const { return static_cast<std::size_t>(size.height) * size.width * stored_channels; }
  std::size_t check_index(std::int64_t i) const {
    if (i < 0 || i >= static_cast<std::int64_t>(labels.size()))
      fail(Kind::argument, concat("PackedDataset: no sample ", i, " of ", labels.size()));
    return static_cast<std::size_t>(i);
  }
  void read_header(const PackFile& file);
  void read_samples(const PackFile& file);
  std::vector<std::uint8_t> record(std::int64_t i) const;
  std::string key(std::int64_t i) const;
  std::string name(std::int64_t i) const {
    return concat("sample ", i, " ('", key(i), "') of part '", part, "' in '", path.string(), "'");
  }
};

void PackedDataset::Impl::read_header(const PackFile& file) {
  const auto encoding = h5_string_attribute(file.id(), "encoding");
  if (encoding != "encoded" && encoding != "u8") file.fail_damaged("its encoding is unknown");
  decoded = encoding == "u8";
  const auto stored = h5_integer_attribute(file.id(), "channels");
  if (stored != 1 && stored != 3) file.fail_damaged("it has neither 1 nor 3 channels");
  stored_channels = static_cast<int>(*stored);
  const auto mean = h5_double_attribute(file.id(), "mean"), stddev = h5_double_attribute(file.id(), "stddev");
  if (!mean || !stddev || mean->size() != static_cast<std::size_t>(*stored) || stddev->size() != mean->size())
    file.fail_damaged("its mean and stddev do not fit its channels");
  if (std::any_of(stddev->begin(), stddev->end(), [](double s) { return !(s > 0); }))
    file.fail_damaged("its stddev is not above zero");
  normalization = {*mean, *stddev};
  classes = file.read_classes();
}

void PackedDataset::Impl::read_samples(const PackFile& file) {
  const std::string group = "/" + part;
  if (!h5_exists(file.id(), group)) fail(Kind::data, concat("pack '", path.string(), "' has no part '", part, "'"));
  labels = file.read_table<std::int64_t>(group + "/labels", H5T_STD_I64LE, -1);
  const auto n = static_cast<std::int64_t>(labels.size());
  if (n == 0) file.fail_damaged(concat("part '", part, "' has no samples"));
  const auto class_count = static_cast<std::int64_t>(classes.size());
  if (std::any_of(labels.begin(), labels.end(), [&](auto label) { return label < 0 || label >= class_count; }))
    file.fail_damaged(concat(group, "/labels has a label without a class"));
  crcs = file.read_table<std::uint32_t>(group + "/crc", H5T_STD_U32LE, n);
  names = file.read_table<std::uint8_t>(group + "/names/bytes", H5T_STD_U8LE, -1);
  name_offsets = file.read_offsets(group + "/names/offsets", n, static_cast<std::int64_t>(names.size()));
  if (!decoded) {
    const Extent bytes = file.locate(group + "/images/bytes", H5T_STD_U8LE, 1);
    data_offset = bytes.offset;
    offsets = file.read_offsets(group + "/images/offsets", n, bytes.sizes[0]);
    return;
  }
  const Extent pixels = file.locate(group + "/images/pixels", H5T_STD_U8LE, 4);
  const auto& s = pixels.sizes;
  constexpr std::int64_t kLargestSide = 1 << 20;
  if (s[0] != n || s[3] != stored_channels || s[1] < 1 || s[2] < 1 || s[1] > kLargestSide || s[2] > kLargestSide)
    file.fail_damaged(concat(group, "/images/pixels has sizes that cannot be"));
  data_offset = pixels.offset;
  size = {static_cast<int>(s[1]), static_cast<int>(s[2])};
}

std::string PackedDataset::Impl::key(std::int64_t i) const {
  const std::size_t at = check_index(i);
  return {names.begin() + name_offsets[at], names.begin() + name_offsets[at + 1]};
}

/// The stored bytes of sample i, checked.
std::vector<std::uint8_t> PackedDataset::Impl::record(std::int64_t i) const {
  const std::size_t at = check_index(i);
  const std::int64_t begin = decoded ? i * static_cast<std::int64_t>(picture_bytes()) : offsets[at];
  std::vector<std::uint8_t> bytes(decoded ? picture_bytes() : static_cast<std::size_t>(offsets[at + 1] - begin));
  read_at(fd.get(), bytes.data(), bytes.size(), data_offset + begin, path);
  if (crc32_z(0, bytes.data(), bytes.size()) != crcs[at])
    fail(Kind::damaged, concat(name(i), " fails its checksum: the file was changed or damaged; pack it again"));
  return bytes;
}

PackedDataset::PackedDataset(const std::filesystem::path& path, const std::string& part, int channels)
    : impl_(std::make_unique<Impl>()) {
  if (channels != 0 && channels != 1 && channels != 3)
    fail(Kind::argument, concat("PackedDataset: channels is ", channels, ", takes 0, 1 or 3"));
  const Hdf5Session session;
  PackFile file(path);
  impl_->path = path;
  impl_->part = part;
  impl_->read_header(file);
  impl_->read_samples(file);
  impl_->channels = channels == 0 ? impl_->stored_channels : channels;
  if (impl_->channels != impl_->stored_channels) impl_->normalization = photo_normalization(impl_->channels);
  impl_->fd = file.take_fd();
}

PackedDataset::~PackedDataset() = default;

std::int64_t PackedDataset::size() const { return static_cast<std::int64_t>(impl_->labels.size()); }
int PackedDataset::channels() const { return impl_->channels; }
const std::vector<std::string>& PackedDataset::class_names() const { return impl_->classes; }
std::int64_t PackedDataset::label(std::int64_t i) const { return impl_->labels[impl_->check_index(i)]; }
std::string PackedDataset::sample_name(std::int64_t i) const { return impl_->name(i); }
std::string PackedDataset::sample_key(std::int64_t i) const { return impl_->key(i); }
const Normalization& PackedDataset::normalization() const { return impl_->normalization; }

Image PackedDataset::load(std::int64_t i) const {
  auto bytes = impl_->record(i);
  if (!impl_->decoded) return decode_image(bytes, impl_->channels, sample_name(i));
  Image image;
  image.width = impl_->size.width;
  image.height = impl_->size.height;
  image.channels = impl_->stored_channels;
  image.pixels = std::move(bytes);
  return image.channels == impl_->channels ? image : convert_channels(image.view(), impl_->channels);
}

ImagePart PackedDataset::load_part(std::int64_t i, const ChooseBox& choose) const {
  if (impl_->decoded) return whole(load(i));
  return decode_image_part(impl_->record(i), impl_->channels, sample_name(i), choose);
}

std::optional<std::vector<std::uint8_t>> PackedDataset::encoded(std::int64_t i) const {
  if (impl_->decoded) return std::nullopt;
  return impl_->record(i);
}

std::optional<Dataset::Size> PackedDataset::fixed_size() const {
  if (!impl_->decoded) return std::nullopt;
  return impl_->size;
}

bool pack_has_part(const std::filesystem::path& path, const std::string& part) {
  const Hdf5Session session;
  const PackFile file(path);
  return h5_exists(file.id(), "/" + part);
}

}  // namespace apex::io
