// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apex/core/tensor.hpp"
#include "apex/io/data/loader.hpp"

namespace apex::train {

/// JPEG files to rows of a batch on a GPU: nvJPEG decodes, kernels::image_resize does what the CPU's transform does.
/// The chips' own decoder is used where the driver offers it and it takes the file, else nvJPEG's kernels;
/// APEX_NVJPEG_BACKEND=hardware|gpu|host in the environment names one of its ways instead. Pixels differ from libjpeg's
/// by a few levels (another inverse transform and chroma upsampling). All memory is kept from batch to batch.
class NvjpegDecoder {
 public:
  /// Everything is queued on `ctx`. @throws Kind::unsupported when nvJPEG does not start on this device
  explicit NvjpegDecoder(const Context& ctx);
  NvjpegDecoder(const NvjpegDecoder&) = delete;
  NvjpegDecoder& operator=(const NvjpegDecoder&) = delete;
  ~NvjpegDecoder();

  /// Whether decode() takes such a file. From any thread.
  static bool takes(const io::JpegInfo& info) noexcept;
  /// "nvJPEG 13.0.4", of the library that was loaded.
  static std::string version();

  /// Queues decoding of `rows` into the rows of `images` (u8 [N, C, H, W]) that they name. `may_write` is called once,
  /// when what decodes the first (as a rule: all) files is queued and before anything is that writes to `images`. The
  /// files' bytes must stay until the stream has passed all this.
  /// @returns the positions in `rows` of files that nvJPEG refused; their rows are not written
  std::vector<std::size_t> decode(std::span<const io::EncodedRow> rows, const Tensor& images,
                                  const std::function<void()>& may_write);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::train
