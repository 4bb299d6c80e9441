// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "apex/core/tensor.hpp"
#include "apex/io/data/dataset.hpp"
#include "apex/io/data/sampler.hpp"
#include "apex/io/image/transform.hpp"

namespace apex::io {

/// A row of a batch that is still the bytes of a JPEG file (LoaderOptions::leaves_encoded).
struct EncodedRow {
  std::int64_t row = 0;  ///< of the batch; -1 once decode() left it out
  std::int64_t id = -1;  ///< of the sample that stands there, which Batch::ids need not name (BadSample::skip)
  JpegInfo info;
  Placement placement;  ///< what the transform does to it
  std::vector<std::uint8_t> bytes;
};

/// One rank's part of a global batch, on the host.
struct Batch {
  Tensor images;  ///< u8 [n, C, H, W], channels-last strides, 0..255; rows in `encoded` are not written
  Tensor labels;  ///< i64 [n]
  Tensor ids;     ///< i64 [n]: index in the data set
  std::int64_t valid =
      0;  ///< rows from here on are padding (evaluation only): black, label 0, id -1; do not count them
  std::int64_t epoch = 0;
  std::int64_t step = 0;    ///< in the epoch
  std::int64_t first = 0;   ///< row i is row first + i * stride of the global batch (rank and number of ranks):
  std::int64_t stride = 1;  ///<   the row of a random mask (DESIGN: the mask's row is the global sample index)
  std::int64_t bad = 0;     ///< rows whose sample was bad: replaced, left out or black
  double wait_seconds = 0;  ///< how long next() held the caller
  std::vector<EncodedRow> encoded = {};  ///< by row; empty unless LoaderOptions::leaves_encoded
};

/// What to do with a sample that is no picture (cut short, wrong format, failed checksum). The decision looks at
/// (seed, epoch, sample) alone, so it is the same on every rank and after a resume, and no rank makes more or fewer
/// steps for it: the batch keeps its size and its place. Failures of the file system are no bad samples: they are
/// retried, and end the run if they stay.
enum class BadSample {
  error,  ///< next() throws, naming it
  skip,   ///< training (Sampler drops the last batch): its place is taken by the next good sample of the data set
          ///< (index + 1, ..., cyclic), label included, so that every rank's loss is a mean over as many samples;
          ///< evaluation (Sampler pads): its row becomes padding, behind Batch::valid, and does not count
  black,  ///< zeros under its own label, counted like any other
};
/// Takes "error", "skip", "black".
std::optional<BadSample> parse_bad_sample(std::string_view text) noexcept;

struct LoaderOptions {
  int workers = -1;         ///< threads that read; 0: next() reads on the calling thread; -1: default_workers()
  int prefetch = 3;         ///< batches in the making or ready, at most
  bool look_ahead = false;  ///< start on the next epoch before start() asks for it (training)
  BadSample bad_sample = BadSample::error;
  /// Where batches are put: host memory of so many bytes, 64-byte aligned, asked for by the reader threads; empty: the
  /// host pool. Page-locked memory lets a GPU fetch them without a copy of the host's.
  std::function<std::shared_ptr<Storage>(std::size_t bytes)> memory = {};
  /// Which JPEG files are handed out as they are, in Batch::encoded, with what was drawn for them, for somebody else to
  /// decode and transform; asked by the reader threads. All others, and all when empty, are decoded here.
  std::function<bool(const JpegInfo&)> leaves_encoded = {};
  int retries = 3;                             ///< further tries after a failure of the file system
  std::chrono::milliseconds retry_delay{100};  ///< before the first retry; doubles with each
  /// Testing aid: reading a batch takes this much longer. Also set by the environment variable APEX_READ_DELAY_MS.
  std::chrono::milliseconds read_delay{0};
};

struct LoaderStats {
  std::int64_t batches = 0;
  double wait_seconds = 0;       ///< sum of Batch::wait_seconds
  std::int64_t bad_samples = 0;  ///< times a bad sample was met (skip, black); each is named once, the first 20 of them
  std::int64_t retries = 0;
};

/// One less than the processors this process may run on (its affinity mask, not the machine's count), at least 1.
int default_workers() noexcept;

/// Reads, decodes and transforms batches ahead of their use. Batches come in order, bit-identical for any number of
/// workers. Used from one thread. Worker threads block all signals.
class Loader {
 public:
  /// @throws Kind::argument when the sampler's size is not the data set's, or an option is out of range
  Loader(std::shared_ptr<const Dataset> dataset, Transform transform, Sampler sampler,
         const LoaderOptions& options = {});
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Stops within the time of one sample.
  ~Loader();

  /// From here on next() gives the batches of `epoch` from `step` on; no earlier sample is read. `step` may equal
  /// steps_per_epoch(): then the epoch is over. @throws Kind::argument out of range
  void start(std::int64_t epoch, std::int64_t step = 0);

  /// The next batch; nothing once the epoch is over.
  /// @throws what reading it threw (of several bad samples, the first in the batch), again on every further call until
  ///         start(); Kind::state before start()
  std::optional<Batch> next();

  /// Decodes row encoded[k] of a batch of this loader's here after all, as if it had not been left: into images, with
  /// the bad-sample policy, which may change its label and adds to `bad`. encoded[k].bytes are empty then. Where the
  /// policy leaves the row out, those behind it move up, in images, ids, labels and the `row` of the others in
  /// `encoded` (whose order and positions stay), and `valid` is one less.
  /// @throws what next() would have thrown for it
  void decode(Batch& batch, std::size_t k);

  std::int64_t steps_per_epoch() const noexcept;
  /// Whether batches may have encoded rows.
  bool leaves_encoded() const noexcept;
  const Dataset& dataset() const noexcept;
  const Sampler& sampler() const noexcept;
  int workers() const noexcept;
  LoaderStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::io
