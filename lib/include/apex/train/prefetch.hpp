// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apex/io/data/loader.hpp"

namespace apex::train {

/// For io::LoaderOptions::memory: page-locked memory when batches go to a GPU, the loader's own otherwise.
std::function<std::shared_ptr<Storage>(std::size_t bytes)> batch_memory(Device device);

/// What decodes JPEG files on a GPU in this build, e.g. "nvJPEG 13.0.4"; empty where nothing does.
std::string gpu_decoder();
/// For io::LoaderOptions::leaves_encoded: the files that Prefetch decodes on `device`.
/// @throws Kind::unsupported when that is no GPU, or this build has no gpu_decoder()
std::function<bool(const io::JpegInfo&)> gpu_decodes(Device device);

/// The batches of a loader with images and labels on `device`; ids stay on the host. On the CPU they are the loader's
/// own.
///
/// To a GPU they travel on a stream of their own, beside the step that is being computed, into two buffers that take
/// turns. Batches that do not lie in page-locked memory (batch_memory) are copied there first.
///
/// Rows that the loader left encoded are decoded, cropped, resized and mirrored on that stream by what was drawn for
/// them; a file that the GPU's decoder refuses is decoded by the loader, with its policy for bad samples. The pixels
/// are those of the CPU within a few levels: nvJPEG has another inverse transform and chroma upsampling than libjpeg.
/// Damage inside of a file's data that neither its markers nor nvJPEG show goes unseen there.
class Prefetch {
 public:
  /// The loader outlives it. @throws Kind::unsupported when it leaves rows encoded and nothing here decodes them
  Prefetch(io::Loader& loader, Device device);
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;
  ~Prefetch();

  /// As io::Loader::start.
  void start(std::int64_t epoch, std::int64_t step = 0);
  /// As io::Loader::next. Images and labels may be used by what is queued on the current stream until the call after
  /// the next one; the thread waits for the loader only.
  std::optional<io::Batch> next();

 private:
  struct Impl;
  io::Loader& loader_;
  std::unique_ptr<Impl> impl_;  // null on the CPU
};

}  // namespace apex::train
