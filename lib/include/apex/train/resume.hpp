// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apex/checkpoint.hpp"
#include "apex/collectives/session.hpp"
#include "apex/parallel/bucket_plan.hpp"
#include "apex/train/options.hpp"

namespace apex::train {

/// Where a run stands. `index` counts optimizer steps of the epoch that are done; index == steps per epoch means that
/// the epoch is trained but not yet validated.
struct Position {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

/// A checkpoint that a run goes on from.
struct Resume {
  std::filesystem::path path;
  Position position;
  std::int64_t global_batch = 0;  ///< samples of an optimizer step
  io::Attributes config = {};     ///< /config: the options of the run that wrote it, "value  (origin)"
};

/// What --resume names: a file; the newest good one of a directory; for "best" the one that BEST of the checkpoint
/// directory names; or for "auto" the newest good one there, if there is one. Unless --verify-checkpoint is none, all
/// of it is checked before it is chosen. Rank 0 looks, all ranks get its answer. Nothing to resume gives nothing:
/// without --resume, and with "auto" on an empty directory. Where the checkpoint directory already holds checkpoints of
/// a run with the same --resume, the job was requeued: the newest of these is taken, whatever has become of what
/// --resume names. A run that trains holds the checkpoint directory's lock from here on, until its process ends or
/// give_back_directory(). Collective.
/// @throws Kind::data  a named file or directory without a checkpoint is missing; or the run would start anew in a
///                     directory that holds the checkpoints of another, or that another uses at this moment
/// @throws Kind::damaged
std::optional<Resume> find_resume(const TrainOptions& options, const dist::Session& session);

/// Gives back the lock that find_resume took, and removes the directories it made as far as nothing was put into them.
/// Also done at the end of the process, which may end in a hurry.
void give_back_directory() noexcept;
/// Does it when an exception ends the scope: a start that failed leaves nothing behind.
class DirectoryGuard {
 public:
  DirectoryGuard() : exceptions_(std::uncaught_exceptions()) {}
  DirectoryGuard(const DirectoryGuard&) = delete;
  DirectoryGuard& operator=(const DirectoryGuard&) = delete;
  ~DirectoryGuard() {
    if (std::uncaught_exceptions() > exceptions_) give_back_directory();
  }

 private:
  int exceptions_;
};

/// How the options `names` of this run differ from those a checkpoint was trained with: "dtype is bf16 here, not f32".
/// Options that the checkpoint does not know of are passed over.
std::vector<std::string> changed_options(const std::vector<EffectiveOption>& configuration,
                                         const std::vector<std::string>& names, const io::Attributes& config);

/// Samples per process and micro-step: --batch-size, or on a resume what keeps the global batch of the checkpoint.
/// @throws Kind::data when that is no whole number
std::int64_t batch_size_for(const TrainOptions& options, int world_size, const std::optional<Resume>& resume);

/// What /ddp of a checkpoint holds, and the plan in it. @throws Kind::damaged when there is none
checkpoint::Section plan_section(const parallel::BucketPlan& plan);
parallel::BucketPlan plan_of(const checkpoint::Section& section);

}  // namespace apex::train
