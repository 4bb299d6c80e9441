// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>

#include <algorithm>
#include <numeric>

#include "agreement.hpp"
#include "apex/core/program.hpp"
#include "directory.hpp"
#include "fault.hpp"
#include "layout.hpp"
#include "metadata.hpp"
#include "posix_file.hpp"

namespace apex::io {
namespace {

namespace fs = std::filesystem;

/// The first path at which this rank's list differs from `theirs`, if any.
std::optional<std::string> first_difference(const std::vector<EntryDigest>& mine,
                                            const std::vector<EntryDigest>& theirs) {
  for (std::size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    if (i == mine.size()) return theirs[i].path;
    if (i == theirs.size()) return mine[i].path;
    if (mine[i].path != theirs[i].path) return std::min(mine[i].path, theirs[i].path);
    if (mine[i].hash != theirs[i].hash) return mine[i].path;
  }
  return std::nullopt;
}

std::string pack(const std::vector<EntryDigest>& entries) {
  std::string text;
  for (const auto& e : entries) {
    text.append(reinterpret_cast<const char*>(&e.hash), sizeof e.hash);
    text += e.path;
    text += '\0';
  }
  return text;
}

std::vector<EntryDigest> unpack(const std::string& text) {
  std::vector<EntryDigest> entries;
  for (std::size_t at = 0; at < text.size();) {
    EntryDigest e;
    text.copy(reinterpret_cast<char*>(&e.hash), sizeof e.hash, at);
    e.path = text.c_str() + at + sizeof e.hash;
    at += sizeof e.hash + e.path.size() + 1;
    entries.push_back(std::move(e));
  }
  return entries;
}

/// One write_checkpoint, from the agreement to the last note. Every member function is called by all ranks.
class Writer {
 public:
  Writer(MPI_Comm comm, const fs::path& directory, std::int64_t step, const Tree& tree,
         const CheckpointWriteOptions& options)
      : comm_(comm), directory_(directory), step_(step), tree_(tree), options_(options) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    final_ = directory_ / step_file_name(step_);
  }

  CheckpointWriteResult run() {
    agree_on_tree();
    prepare_blocks();
    move_parts();
    hash_blocks();
    // Rank 0 names the file: the suffix holds its process id.
    temporary_ = directory_ / (step_file_name(step_) + broadcast(comm_, temporary_suffix(), 0));
    try {
      create();
      write_data();
      finish();
    } catch (const Error& e) {
      give_up(e.kind());
      throw;
    }
    note();
    return result();
  }

 private:
  /// Nobody goes on (and perhaps ends the job) before the temporary file is gone. An error of MPI itself is not known
  /// to all ranks, so then nobody waits.
  void give_up(Kind kind) {
    std::error_code ignored;
    if (rank_ == 0) fs::remove(temporary_, ignored);
    if (kind != Kind::communication) MPI_Barrier(comm_);
  }

  void agree_on_tree() {
    together(comm_, [&] {
      if (step_ < 0) fail(Kind::argument, concat("checkpoint: step ", step_, " is negative"));
    });
    const auto mine = digest(tree_, options_.rank0_groups);
    const auto theirs = unpack(broadcast(comm_, pack(mine), 0));
    together(comm_, [&] {
      if (const auto path = first_difference(mine, theirs))
        fail(Kind::argument, concat("checkpoint: the state is not the same on all ranks; rank ", rank_,
                                    " differs from rank 0 first at '/", *path, "'"));
    });
  }

  void prepare_blocks() {
    for (const auto& [path, dataset] : tree_.datasets()) {
      data_.emplace_back(dataset);
      dataset_bytes_.push_back(data_.back().size());
    }
    blocks_ = assign_blocks(dataset_bytes_, size_);
    result_.bytes_per_rank = bytes_per_owner(blocks_, size_);
  }

  bool is_mine(const Block& block) const { return block.owner == rank_; }
  std::span<const std::byte> bytes_of(const Block& block) {
    if (const auto moved = moved_.find({block.dataset, block.offset}); moved != moved_.end()) return moved->second;
    return data_[block.dataset].block(block.offset, block.bytes, scratch_);
  }

  /// Brings the elements of datasets in parts to the owners of their blocks.
  void move_parts() {
    std::vector<const TreeDataset*> datasets;
    std::vector<std::int64_t> mine;  // begin and end of this rank's part of each, in bytes
    for (const auto& [path, dataset] : tree_.datasets()) {
      datasets.push_back(&dataset);
      const auto size = dataset.in_parts() ? static_cast<std::int64_t>(size_of(dataset.part.dtype())) : 0;
      mine.push_back(dataset.part_begin * size);
      mine.push_back(dataset.in_parts() ? mine.back() + static_cast<std::int64_t>(dataset.part.bytes()) : 0);
    }
    if (std::none_of(datasets.begin(), datasets.end(), [](const auto* d) { return d->in_parts(); })) return;
    const auto width = mine.size();
    std::vector<std::int64_t> all(width * static_cast<std::size_t>(size_));
    check_mpi(MPI_Allgather(mine.data(), static_cast<int>(width), MPI_INT64_T, all.data(), static_cast<int>(width),
                            MPI_INT64_T, comm_),
              "MPI_Allgather");
    const auto part_of = [&](int rank, std::size_t dataset) {
      const auto* at = all.data() + static_cast<std::size_t>(rank) * width + 2 * dataset;
      return std::pair{at[0], at[1]};
    };
    together(comm_, [&] {
      std::size_t d = 0;
      for (const auto& [path, dataset] : tree_.datasets()) {
        std::vector<std::pair<std::int64_t, std::int64_t>> parts;
        for (int r = 0; r < size_ && dataset.in_parts(); ++r)
          if (const auto part = part_of(r, d); part.first < part.second) parts.push_back(part);
        std::sort(parts.begin(), parts.end());
        std::int64_t end = 0;
        for (const auto& part : parts) end = part.first == end ? part.second : -1;
        if (dataset.in_parts() && end != dataset_bytes_[d])
          fail(Kind::argument, concat("checkpoint: the parts of '", path, "' that ranks hold do not cover it"));
        ++d;
      }
    });

    constexpr std::size_t kBlocksAtOnce = 64;  // bounds what is under way
    std::vector<MPI_Request> requests;
    const auto wait = [&] {
      check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
      requests.clear();
    };
    std::size_t open = 0;
    for (const Block& block : blocks_) {
      if (!datasets[block.dataset]->in_parts()) continue;
      std::vector<std::byte>* to = nullptr;
      if (is_mine(block)) {
        to = &moved_[{block.dataset, block.offset}];
        to->resize(static_cast<std::size_t>(block.bytes));
      }
      for (int r = 0; r < size_; ++r) {
        const auto part = part_of(r, block.dataset);
        const auto begin = std::max(part.first, block.offset), end = std::min(part.second, block.offset + block.bytes);
        if (begin >= end) continue;
        const auto bytes = static_cast<int>(end - begin);
        std::byte* source =
            r == rank_ ? static_cast<std::byte*>(datasets[block.dataset]->part.raw_data()) + (begin - part.first)
                       : nullptr;
        if (r == rank_ && to != nullptr)
          std::copy_n(source, bytes, to->data() + (begin - block.offset));
        else if (r == rank_)
          check_mpi(MPI_Isend(source, bytes, MPI_BYTE, block.owner, 0, comm_, &requests.emplace_back()), "MPI_Isend");
        else if (to != nullptr)
          check_mpi(
              MPI_Irecv(to->data() + (begin - block.offset), bytes, MPI_BYTE, r, 0, comm_, &requests.emplace_back()),
              "MPI_Irecv");
      }
      if (++open % kBlocksAtOnce == 0) wait();
    }
    wait();
  }

  void hash_blocks() {
    std::vector<std::uint64_t> hashes(blocks_.size(), 0);
    together(comm_, [&] {
      for (std::size_t i = 0; i < blocks_.size(); ++i)
        if (is_mine(blocks_[i])) hashes[i] = hash_bytes(bytes_of(blocks_[i]));
    });
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, hashes.data(), static_cast<int>(hashes.size()), MPI_UINT64_T, MPI_BOR, comm_),
              "MPI_Allreduce");
    std::size_t at = 0;
    for (const auto bytes : dataset_bytes_) {
      const auto count = static_cast<std::size_t>(block_count(bytes));
      dataset_hashes_.push_back(hash_of_hashes(std::span(hashes).subspan(at, count)));
      at += count;
    }
  }

  Tree complete_tree() const {
    Tree tree = tree_;
    auto& root = tree.group("");
    root["format"] = std::string(kFormat);
    root["format_version"] = kFormatVersion;
    root["library_version"] = std::string(version());
    root["step"] = step_;
    root["world_size"] = std::int64_t{size_};
    root["complete"] = true;
    return tree;
  }

  /// Rank 0 builds the metadata in memory and makes the file, with all its space reserved.
  void create() {
    together(comm_, [&] {
      if (rank_ != 0) return;
      std::error_code error;
      fs::create_directories(directory_, error);
      if (error) fail_errno(directory_, "make the directory", error.value());
      remove_stale_temporaries(directory_);
      metadata_ = build_metadata(complete_tree(), dataset_hashes_);
      data_begin_ = static_cast<std::int64_t>(metadata_.size());
      fault::point("before_create", rank_);
      const PosixFile file(temporary_, O_RDWR | O_CREAT | O_TRUNC);
      file.reserve(data_begin_ + total_bytes());
      fault::point("after_create", rank_);
    });
    check_mpi(MPI_Bcast(&data_begin_, 1, MPI_INT64_T, 0, comm_), "MPI_Bcast");
  }

  std::int64_t total_bytes() const {
    return std::accumulate(dataset_bytes_.begin(), dataset_bytes_.end(), std::int64_t{0});
  }

  /// Every rank writes its blocks where they belong, and waits until the device has them.
  void write_data() {
    together(comm_, [&] {
      std::vector<std::int64_t> begin(dataset_bytes_.size() + 1, data_begin_);
      std::partial_sum(dataset_bytes_.begin(), dataset_bytes_.end(), begin.begin() + 1);
      for (std::size_t d = 1; d < begin.size(); ++d) begin[d] += data_begin_;
      fault::point("before_write", rank_);
      PosixFile file(temporary_, O_WRONLY);
      const auto mine = std::count_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return is_mine(b); });
      std::int64_t written = 0;
      for (const auto& block : blocks_) {
        if (!is_mine(block)) continue;
        if (written++ == mine / 2) fault::point("mid_write", rank_);
        file.write_at(bytes_of(block), begin[block.dataset] + block.offset);
      }
      fault::point("before_fsync", rank_);
      file.sync();
      file.close();
      fault::point("after_fsync", rank_);
    });
  }

  /// Rank 0 makes an HDF5 file of it: metadata last, the user block (which tells that they are whole) after them.
  void finish() {
    together(comm_, [&] {
      if (rank_ != 0) return;
      const auto metadata = std::span<const std::byte>(metadata_);
      PosixFile file(temporary_, O_RDWR);
      fault::point("before_metadata", rank_);
      file.write_at(metadata.subspan(kUserBlockBytes), kUserBlockBytes);
      fault::point("mid_metadata", rank_);
      file.write_at(metadata.first(kUserBlockBytes), 0);
      fault::point("after_metadata", rank_);
      verify();
      fault::point("after_verify", rank_);
      fault::point("before_final_fsync", rank_);
      file.sync();
      file.close();
      fault::point("before_rename", rank_);
      rename_file(temporary_, final_);
      fault::point("after_rename", rank_);
      sync_directory(directory_);
      fault::point("after_directory_fsync", rank_);
    });
  }

  void verify() const {
    if (options_.verify != Verify::none) CheckpointFile(temporary_).verify(options_.verify);
  }

  /// The file is safe. LATEST and BEST follow it, then the old ones go.
  void note() {
    together(comm_, [&] {
      if (rank_ != 0) return;
      const std::string text = final_.filename().string() + '\n';
      write_note(directory_, "LATEST", text, "latest");
      if (options_.best) write_note(directory_, "BEST", text, "best");
      fault::point("before_prune", rank_);
      result_.deleted = prune(directory_, options_.keep, final_, options_.loaded_from);
      fault::point("after_prune", rank_);
    });
  }

  CheckpointWriteResult result() {
    std::string deleted;
    for (const auto& path : result_.deleted) deleted += path.string() + '\n';
    deleted = broadcast(comm_, deleted, 0);
    result_.deleted.clear();
    for (std::size_t at = 0; at < deleted.size();) {
      const auto end = deleted.find('\n', at);
      result_.deleted.emplace_back(deleted.substr(at, end - at));
      at = end + 1;
    }
    result_.path = final_;
    result_.bytes = data_begin_ + total_bytes();
    return std::move(result_);
  }

  MPI_Comm comm_;
  fs::path directory_;
  std::int64_t step_;
  const Tree& tree_;
  const CheckpointWriteOptions& options_;
  int rank_ = 0, size_ = 1;
  fs::path final_, temporary_;
  std::vector<DatasetBytes> data_;
  std::vector<std::int64_t> dataset_bytes_;
  std::vector<std::uint64_t> dataset_hashes_;
  std::vector<Block> blocks_;
  std::vector<std::byte> metadata_;  // rank 0
  std::vector<std::byte> scratch_;
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<std::byte>> moved_;  // of datasets in parts, by block
  std::int64_t data_begin_ = 0;
  CheckpointWriteResult result_;
};

}  // namespace

CheckpointWriteResult write_checkpoint(MPI_Comm comm, const fs::path& directory, std::int64_t step, const Tree& tree,
                                       const CheckpointWriteOptions& options) {
  const FileSizeSignalGuard guard;
  return Writer(comm, directory, step, tree, options).run();
}

}  // namespace apex::io
