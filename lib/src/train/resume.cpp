// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/resume.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "apex/io/checkpoint.hpp"

namespace apex::train {
namespace fs = std::filesystem;
namespace {

/// Whether checkpoints can be written there is better known before the first epoch than after it.
void probe(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  const fs::path file = directory / (".apex-probe." + std::to_string(::getpid()));
  const int fd = error ? -1 : ::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  const int reason = error ? error.value() : errno;
  if (fd < 0)
    fail(Kind::data, concat("--checkpoint-dir '", directory.string(), "': ", std::strerror(reason),
                            "; name a directory that can be written"));
  ::close(fd);
  fs::remove(file, error);
}

/// Nobody else writes there from here to the end of the process, which trains one model.
void claim(const fs::path& directory) {
  static std::optional<io::DirectoryLock> held;
  probe(directory);
  held.reset();
  held.emplace(directory);
}

/// Whether the run that saved `file` was started with the same --resume: a job that was requeued.
bool started_alike(const io::CheckpointFile& file, const TrainOptions& o) {
  const auto& config = file.attributes("config");
  const auto found = config.find("resume");
  const auto* text = found == config.end() ? nullptr : std::get_if<std::string>(&found->second);
  return text != nullptr && text->starts_with(o.resume + "  (");
}

/// A run may only go on in a directory whose newest checkpoint it starts from: older files of its own would be
/// overwritten or taken for newer ones, and those of another run would be mixed with its own.
void refuse_to_mix(const io::CheckpointFile& from, std::int64_t newest, const TrainOptions& o, bool one_file) {
  std::error_code ignored;
  const bool at_home =
      fs::equivalent(from.path().parent_path().empty() ? "." : from.path().parent_path(), o.checkpoint_dir, ignored);
  if (!at_home)
    fail(Kind::data, concat("'", o.checkpoint_dir, "' holds checkpoints of another run, up to step ", newest,
                            "; to go on from '", from.path().string(), "' give another --checkpoint-dir"));
  if (one_file && newest > from.step())
    fail(Kind::data,
         concat("'", o.checkpoint_dir, "' holds checkpoints up to step ", newest, ", beyond step ", from.step(),
                " of '", from.path().string(), "'; move them away, or give another --checkpoint-dir"));
}

/// The file that --resume leads to, by this rank's own look; empty when there is none and none is needed.
fs::path look(const TrainOptions& o) {
  const fs::path directory = o.checkpoint_dir;
  const auto there = io::list_checkpoints(directory);
  // Every dataset is checked once more when it is read, but then it is too late to take an older file.
  const auto verify = o.verify_checkpoint == "none" ? io::Verify::none : io::Verify::full;
  if (o.resume == "best") {
    const auto best = io::best_checkpoint(directory);
    if (!best) fail(Kind::data, concat("--resume best: '", o.checkpoint_dir, "' has no BEST that names a checkpoint"));
    const auto file = io::open_checkpoint(*best, verify);
    if (!o.evaluate) refuse_to_mix(file, there.back().step, o, true);
    return file.path();
  }
  if (!o.resume.empty() && o.resume != "auto") {
    if (!fs::exists(o.resume)) fail(Kind::data, concat("--resume: no checkpoint found at '", o.resume, "'"));
    const auto file = io::open_checkpoint(o.resume, verify);
    if (!o.evaluate && !there.empty()) {
      const auto newest = io::open_checkpoint(directory, verify);
      if (newest.step() > file.step() && started_alike(newest, o)) {
        log_warning(concat("--resume: this run has gone on from '", o.resume, "' before; it continues from '",
                           newest.path().string(), "'"));
        return newest.path();
      }
    }
    if (!o.evaluate && !there.empty()) refuse_to_mix(file, there.back().step, o, fs::is_regular_file(o.resume));
    return file.path();
  }
  if (o.resume == "auto") return there.empty() ? fs::path() : io::open_checkpoint(directory, verify).path();
  if (!there.empty() && !o.evaluate)
    fail(Kind::data, concat("'", o.checkpoint_dir, "' holds checkpoints of another run, up to step ", there.back().step,
                            "; give --resume auto to go on with it, or another --checkpoint-dir"));
  return {};
}

}  // namespace

std::optional<Resume> find_resume(const TrainOptions& options, const dist::Session& session) {
  const auto world = session.world();
  std::string found;
  world.together(
      [&] {
        if (session.rank() != 0) return;
        // Claimed before the look, so that what is seen stays; a directory that is not there holds nothing, and a run
        // that is refused does not make it.
        const bool trains = !options.evaluate, there = fs::exists(options.checkpoint_dir);
        if (trains && there) claim(options.checkpoint_dir);
        found = look(options).string();
        if (trains && !there) claim(options.checkpoint_dir);
      },
      "looking for a checkpoint");
  found = world.broadcast(found, 0, "path of the checkpoint");
  if (found.empty()) return std::nullopt;
  Resume out;
  world.together(
      [&] {
        const io::CheckpointFile file{fs::path(found)};
        const auto& sampler = file.attributes("sampler");
        const std::string where = found + ": /sampler";
        out.path = found;
        out.position.step = file.step();
        out.position.epoch = io::attribute<std::int64_t>(sampler, "epoch", where);
        out.position.index = io::attribute<std::int64_t>(sampler, "index", where);
        out.global_batch = io::attribute<std::int64_t>(sampler, "global_batch", where);
      },
      "reading the checkpoint's position");
  return out;
}

std::int64_t batch_size_for(const TrainOptions& options, int world_size, const std::optional<Resume>& resume) {
  if (!resume || options.evaluate) return options.batch_size;
  const std::int64_t parts = world_size * options.accumulate;
  if (resume->global_batch % parts != 0)
    fail(Kind::data, concat("the checkpoint was trained with ", resume->global_batch, " samples a step, which ",
                            world_size, " rank(s) with --accumulate ", options.accumulate,
                            " cannot share evenly; start a number of ranks that divides it"));
  return resume->global_batch / parts;
}

}  // namespace apex::train
