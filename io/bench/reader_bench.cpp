// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// reader_bench FOLDER [Google Benchmark's options]: what one core reads of the JPEGs below a folder. A sample is read
// from its file, decoded, cropped at random, resized to 224 x 224 and mirrored by the loader; beside it, in the same
// iteration, libjpeg-turbo decodes the whole file from memory and does nothing with it. `ratio` is the rate of the
// first over the second. Times are the thread's own CPU time.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <vector>

#include <jpeglib.h>  // wants size_t and FILE first

#include "apex/core/error.hpp"
#include "apex/io/data/loader.hpp"
#include "apex/io/data/sources.hpp"

namespace {

namespace fs = std::filesystem;
namespace io = apex::io;
using Bytes = std::vector<std::uint8_t>;

constexpr int kSide = 224;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// One file again and again, with another crop each epoch.
class OneFile final : public io::Dataset {
 public:
  explicit OneFile(fs::path path) : path_(std::move(path)) {}
  std::int64_t size() const override { return 1; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int64_t label(std::int64_t) const override { return 0; }
  std::string sample_name(std::int64_t) const override { return path_.string(); }
  std::string sample_key(std::int64_t) const override { return path_.string(); }
  io::Image load(std::int64_t) const override { return io::decode_image(io::read_file(path_), 3, path_.string()); }
  io::ImagePart load_part(std::int64_t, const io::ChooseBox& choose) const override {
    return io::decode_image_part(io::read_file(path_), 3, path_.string(), choose);
  }

 private:
  fs::path path_;
  std::vector<std::string> names_{"none"};
};

/// libjpeg-turbo by itself, with its defaults, into memory that is there already. A damaged file ends the program.
void decode_fully(const Bytes& file, Bytes& pixels) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  jpeg_start_decompress(&info);
  const std::size_t row_bytes = std::size_t{info.output_width} * static_cast<std::size_t>(info.output_components);
  pixels.resize(std::max(pixels.size(), row_bytes * info.output_height));
  while (info.output_scanline < info.output_height) {
    std::array<JSAMPROW, 4> rows;
    for (std::size_t r = 0; r < rows.size(); ++r)
      rows[r] = pixels.data() + std::min<std::size_t>(info.output_scanline + r, info.output_height - 1) * row_bytes;
    jpeg_read_scanlines(&info, rows.data(), static_cast<JDIMENSION>(rows.size()));
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
}

struct Source {
  fs::path path;
  Bytes bytes;
  std::int64_t pixels = 0;
  bool progressive = false;
};

/// By its marker: start of frame 2 is progressive.
bool is_progressive(const Bytes& file) {
  for (std::size_t k = 2; k + 4 < file.size() && file[k] == 0xff;) {
    if (file[k + 1] == 0xc2) return true;
    if (file[k + 1] == 0xda || (file[k + 1] >= 0xc0 && file[k + 1] <= 0xc3)) return false;
    k += 2 + std::size_t{file[k + 2]} * 256 + file[k + 3];
  }
  return false;
}

std::vector<Source> find_jpegs(const fs::path& folder) {
  std::vector<Source> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.is_symlink()) continue;
    Bytes bytes = io::read_file(entry.path());
    if (io::sniff_image_format(bytes) != io::ImageFormat::jpeg) continue;
    try {
      const io::Image image = io::decode_image(bytes, 3, entry.path().string());
      const bool progressive = is_progressive(bytes);
      out.push_back({entry.path(), std::move(bytes), std::int64_t{image.width} * image.height, progressive});
    } catch (const apex::Error& error) {
      std::cerr << "left out: " << error.what() << '\n';
    }
  }
  std::sort(out.begin(), out.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return out;
}

void read(benchmark::State& state, const std::vector<const Source*>& sources) {
  double ours = 0, theirs = 0, megapixels = 0;
  Bytes pixels;
  std::vector<std::unique_ptr<io::Loader>> loaders;
  for (const Source* source : sources) {
    io::LoaderOptions here{.workers = 0};
    loaders.push_back(std::make_unique<io::Loader>(std::make_shared<OneFile>(source->path),
                                                   io::Transform(io::train_transform(kSide, 1)),
                                                   io::Sampler({.size = 1, .batch = 1}), here));
    megapixels += 1e-6 * static_cast<double>(source->pixels);
  }
  std::int64_t epoch = 0;
  for (auto _ : state) {
    double seconds = 0;
    for (std::size_t k = 0; k < sources.size(); ++k) {
      const double begin = cpu_seconds();
      decode_fully(sources[k]->bytes, pixels);
      const double middle = cpu_seconds();
      loaders[k]->start(epoch);
      benchmark::DoNotOptimize(loaders[k]->next());
      seconds += cpu_seconds() - middle;
      theirs += middle - begin;
    }
    ours += seconds;
    state.SetIterationTime(seconds);
    ++epoch;
  }
  const auto files = static_cast<double>(sources.size() * static_cast<std::size_t>(state.iterations()));
  state.counters["files"] = static_cast<double>(sources.size());
  state.counters["Mpixel"] = megapixels;
  state.counters["images_per_s"] = files / ours;
  state.counters["libjpeg_images_per_s"] = files / theirs;
  state.counters["ratio"] = theirs / ours;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::cerr << "usage: reader_bench FOLDER [--benchmark_min_time=SECONDS ...]\n";
    return 2;
  }
  std::vector<Source> sources;
  try {
    sources = find_jpegs(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "reader_bench: " << error.what() << '\n';
    return 3;
  }
  if (sources.empty()) {
    std::cerr << "reader_bench: no JPEG below '" << argv[1] << "'\n";
    return 3;
  }
  const auto add = [&](const char* name, auto&& wanted) {
    std::vector<const Source*> some;
    for (const auto& source : sources)
      if (wanted(source)) some.push_back(&source);
    if (some.empty()) return;
    benchmark::RegisterBenchmark(name, [some](benchmark::State& state) { read(state, some); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("read_all", [](const Source&) { return true; });
  add("read_one_scan", [](const Source& s) { return !s.progressive; });
  add("read_progressive", [](const Source& s) { return s.progressive; });
  benchmark::RunSpecifiedBenchmarks();
}
