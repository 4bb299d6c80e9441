// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// \file
/// Checkpoints as bytes: a tree of groups, attributes and host tensors, to and from one HDF5 file per step.
/// What the tree means (models, optimizers) is the business of apex/checkpoint.hpp.
///
/// The file is plain HDF5 in the earliest format, read by h5dump, h5ls, h5diff and h5py. Its layout is fixed:
///
///   [0, 512)     user block, text: "apex-checkpoint 1", the file's size, the length of the metadata and their xxh64
///   [512, m)     all HDF5 metadata: superblock, groups, object headers, attributes
///   [m, size)    the data of every dataset, without gaps, in order of path
///
/// so that a reader checks size and metadata before HDF5 parses a byte, and each dataset has attribute `xxh64`: the
/// XXH64 (seed 0) over the little-endian XXH64s of its 4 MiB blocks. Every byte of the file is under one of the sums.
/// They find damage, not malice: a file from an untrusted author can carry right sums, and what HDF5 then makes of the
/// metadata is its own affair: 1.10 crashes on some and never comes to an end on others. So open_checkpoint has a child
/// process read the metadata first, under a limit of CPU time; what kills the child is reported as Kind::damaged. That
/// keeps a tool or a job alive on any file. It is no sandbox: do not load files of people you do not trust.
///
/// | here                   | in the file                                        | h5py reads            |
/// | f64 f32 i64 i32 u8     | the little-endian HDF5 type                        | float64 ... uint8     |
/// | f16                    | 16-bit float (5 exponent bits, bias 15)            | float16               |
/// | bf16                   | 16-bit float (8 exponent bits, bias 127)           | float32, exactly      |
/// | boolean                | 8-bit enum FALSE=0, TRUE=1                         | bool                  |
/// | strings (dataset)      | fixed-length UTF-8, padded with zeros              | bytes; asstr() decodes|
/// | strings (attribute)    | variable-length UTF-8                              | str                   |
///
/// Equal trees give equal files, bit by bit: no time stamps, no order of creation, no padding that is not zero.
///
/// Testing aid: the environment variable APEX_FAULT="[action@]point[:rank][#n]" makes rank `rank` (default 0, * for
/// all) act when it passes `point` for the n-th time (default 1). Actions: kill (default; SIGKILL to itself), stop
/// (SIGSTOP), eio, enospc and short (the next write, fsync or rename fails with EIO or ENOSPC, or writes half and then
/// fails). Points, in the order they are passed: before_create, after_create (rank 0); before_write, mid_write,
/// before_fsync, after_fsync (every rank, about its own share); before_metadata, mid_metadata, after_metadata,
/// after_verify, before_final_fsync, before_rename, after_rename, after_directory_fsync, before_latest, mid_latest,
/// after_latest, before_best, mid_best, after_best, before_prune, after_prune (rank 0).

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex::io {

/// Value of an HDF5 attribute. Empty lists are allowed.
using AttributeValue = std::variant<bool, std::int64_t, double, std::string, std::vector<bool>,
                                    std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>>;
/// By name, so that the order in the file never depends on the order of insertion.
using Attributes = std::map<std::string, AttributeValue, std::less<>>;

/// One dataset of a tree: a host tensor of any dtype and strides, or a list of strings.
struct TreeDataset {
  /// Undefined when the dataset holds strings. Of a dataset in parts only dtype and sizes are looked at.
  Tensor tensor;
  std::vector<std::string> strings;
  Attributes attributes;
  Tensor part = {};  ///< this rank's elements from `part_begin` on, in row-major order
  std::int64_t part_begin = 0;
  bool holds_strings() const noexcept { return !tensor.defined(); }
  bool in_parts() const noexcept { return part.defined(); }
};

/// What goes into a checkpoint. Paths are relative to the root, '/' separates groups: "model/layer1.0.conv1.weight".
/// The empty path is the root group.
class Tree {
 public:
  /// The attributes of a group, made with its parents if it is not there.
  /// @throws Kind::argument for a bad path (empty or "." component, control character, over 1024 bytes) or a dataset's
  /// path
  Attributes& group(std::string_view path);
  /// Adds a dataset and the groups above it. Keeps the handle, not a copy: the data are read when the file is written.
  /// @throws Kind::argument for a bad or used path, an undefined tensor or one that is not on the host
  void add(std::string_view path, const Tensor& tensor, Attributes attributes = {});
  /// A dataset of which every rank holds a part: elements [begin, begin + values.numel()) in row-major order. The parts
  /// of all ranks cover it without gaps or overlaps; a part may be empty.
  /// @param values  one dimension, contiguous, on the host @throws Kind::argument as above, or for a part outside
  void add_part(std::string_view path, const Dims& sizes, std::int64_t begin, const Tensor& values,
                Attributes attributes = {});
  /// Strings hold no NUL and at most 64 KiB each. @throws Kind::argument
  void add(std::string_view path, std::vector<std::string> strings, Attributes attributes = {});

  const std::map<std::string, Attributes, std::less<>>& groups() const noexcept { return groups_; }
  const std::map<std::string, TreeDataset, std::less<>>& datasets() const noexcept { return datasets_; }

 private:
  std::map<std::string, Attributes, std::less<>> groups_{{"", {}}};
  std::map<std::string, TreeDataset, std::less<>> datasets_;
};

enum class Verify {
  none,    ///< trust the return codes
  sample,  ///< metadata, and the first, the last and every 16th dataset, read back and compared with their sums
  full,    ///< all of it
};

struct CheckpointWriteOptions {
  Verify verify = Verify::sample;
  int keep = 0;       ///< step files to keep, the newest by step number; 0 keeps all
  bool best = false;  ///< BEST names this file too
  /// Never deleted, whatever `keep` says: the file this run was started from.
  std::filesystem::path loaded_from = {};
  /// Groups whose attributes are rank 0's and may differ elsewhere (times, host paths): these and those below.
  std::vector<std::string> rank0_groups = {"config", "metrics"};
};

struct CheckpointWriteResult {
  std::filesystem::path path;                  ///< the finished file
  std::int64_t bytes = 0;                      ///< its size
  std::vector<std::int64_t> bytes_per_rank;    ///< data bytes written by each rank, the same list on every rank
  std::vector<std::filesystem::path> deleted;  ///< older step files that `keep` removed
};

/// Writes `directory`/step_%08d.h5. Collective over `comm`; blocking; every rank holds the same tree (whole tensors, or
/// its part of those in parts, whose elements go to the blocks' owners first).
///
/// The root gets attributes format="apex-checkpoint", format_version=1, library_version, step, world_size,
/// complete=true beside those of the tree. Steps: all ranks agree on the tree; every dataset under 4 MiB has one owner,
/// larger ones have an owner per 4 MiB block, balanced by bytes; owners hash their blocks, write them at their offsets
/// in `step_%08d.h5.tmp.<job>.<restart>` and fsync; rank 0 then writes the metadata, which end with `complete`, closes,
/// reopens and verifies, fsyncs, renames, fsyncs the directory, moves LATEST (and BEST) the same way, and deletes old
/// step files: never the newest, never BEST's, never `loaded_from`. Temporary files of dead jobs are removed first.
/// `<job>` is SLURM_JOB_ID, else `<host>-<pid of rank 0>`; `<restart>` is SLURM_RESTART_COUNT, else 0.
///
/// A failure on one rank is thrown on all of them, with that rank's message; the temporary file is removed, and what
/// was there before stays.
/// @throws Kind::argument step < 0, the tree is not the same on all ranks (naming the first path that differs), or the
///         parts of a dataset do not cover it
/// @throws Kind::exhausted no space (ENOSPC, EDQUOT, EFBIG), naming path and bytes
/// @throws Kind::data the directory or file cannot be written (EACCES, EIO, ...), naming path and bytes
/// @throws Kind::damaged what was read back is not what was written
CheckpointWriteResult write_checkpoint(MPI_Comm comm, const std::filesystem::path& directory, std::int64_t step,
                                       const Tree& tree, const CheckpointWriteOptions& options = {});

struct DatasetInfo {
  bool strings = false;  ///< a list of strings; else a tensor
  DType dtype = DType::f32;
  Dims sizes;
  std::int64_t bytes = 0;
  std::uint64_t xxh64 = 0;
  Attributes attributes;  ///< without xxh64
};

/// An open checkpoint file. Its metadata have been checked and parsed; data are read on demand, and checked then.
/// Const member functions may be called from several threads.
class CheckpointFile {
 public:
  /// Opens one file.
  /// @throws Kind::data the file is missing, a directory, or cannot be read
  /// @throws Kind::damaged it is no apex checkpoint, of another format version, truncated, incomplete, or its metadata
  ///         fail their sum; one line that names the file
  explicit CheckpointFile(const std::filesystem::path& path);
  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;
  ~CheckpointFile();

  const std::filesystem::path& path() const noexcept;
  std::int64_t step() const noexcept;
  std::int64_t bytes() const noexcept;

  const std::map<std::string, Attributes, std::less<>>& groups() const noexcept;
  const std::map<std::string, DatasetInfo, std::less<>>& datasets() const noexcept;
  bool has_group(std::string_view path) const { return groups().contains(path); }
  bool has_dataset(std::string_view path) const { return datasets().contains(path); }
  /// Datasets and groups right below a group, without its path, sorted.
  std::vector<std::string> children(std::string_view group) const;

  /// @throws Kind::damaged naming file and group when it is not there
  const Attributes& attributes(std::string_view group) const;
  /// A fresh row-major host tensor.
  /// @throws Kind::damaged naming file and dataset when it is missing, holds strings, or
  /// its bytes do not match its sum
  Tensor read(std::string_view path) const;
  std::vector<std::string> read_strings(std::string_view path) const;

  /// Reads all datasets, or with Verify::sample some, and checks their sums.
  /// @throws Kind::damaged naming the first dataset that fails
  void verify(Verify how = Verify::full) const;
  /// The same for one dataset.
  void verify(std::string_view path) const;

 private:
  friend CheckpointFile open_checkpoint(const std::filesystem::path& path, Verify verify);
  enum class First { here, in_child };
  CheckpointFile(const std::filesystem::path& path, First first);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The attribute of that name and type. An integer serves where a double is asked for.
/// @throws Kind::damaged naming `where` and the attribute when it is missing or of another type
template <class T>
T attribute(const Attributes& attributes, std::string_view name, std::string_view where);

/// A checkpoint file; the one that a note DIRECTORY/LATEST or DIRECTORY/BEST names; or the newest good one of a
/// directory (by step number; LATEST is a note for people and scripts). Of a directory, a damaged one is passed over
/// with a warning that names it and the older one taken instead. Metadata are always checked, and read by a child
/// process first (see above); `verify` says how many of the data. Not collective: one rank asks, and tells the others
/// which file it was.
/// @throws Kind::data `path` is missing, a directory without a step file, or a note that names none
/// @throws Kind::damaged the file, or every step file of the directory, is damaged
CheckpointFile open_checkpoint(const std::filesystem::path& path, Verify verify = Verify::full);

/// step_%08d.h5 files of a directory, oldest first. Empty when the directory is missing.
struct StepFile {
  std::int64_t step = 0;
  std::filesystem::path path;
};
std::vector<StepFile> list_checkpoints(const std::filesystem::path& directory);

/// The file that LATEST or BEST names, if it exists and names a step file that exists.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& directory);
std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& directory);

/// Starts in a row from the same step: a job that is requeued again and again without reaching its next checkpoint.
inline constexpr int kMaxAttempts = 3;
struct Attempts {
  std::int64_t start_step = 0;
  int count = 0;  ///< 0: no start recorded
};
/// Reads `directory`/ATTEMPTS; a missing or unreadable note counts as none.
Attempts read_attempts(const std::filesystem::path& directory);
/// Notes a start from `start_step` (one rank calls it, once a start) and returns the count with this start in it: at
/// kMaxAttempts the caller stops with exit code 4 instead of asking for another requeue. A start from another step
/// begins at 1 again. @throws Kind::data, Kind::exhausted as write_checkpoint
Attempts record_attempt(const std::filesystem::path& directory, std::int64_t start_step);

/// Keeps a second run out of a checkpoint directory. Advisory: who asks for no lock is not stopped. One rank of a run
/// holds it for as long as the run may write; the kernel takes it back when that process ends, in whatever way, so that
/// nothing is left to clean up after kill -9. `directory`/LOCK says who holds it; an orderly end removes the file.
class DirectoryLock {
 public:
  /// Makes the directory if it is missing, and waits up to `seconds` for a holder that is about to end. On a file
  /// system without locks it warns and locks nothing.
  /// @throws Kind::data somebody else holds it (naming host, process and job), or LOCK cannot be made
  explicit DirectoryLock(const std::filesystem::path& directory, double seconds = 3);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace apex::io
