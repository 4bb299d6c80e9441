// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/resume.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "apex/io/checkpoint.hpp"

namespace apex::train {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail_to_write(const fs::path& directory, int reason) {
  fail(Kind::data, concat("--checkpoint-dir '", directory.string(), "': ", std::strerror(reason),
                          "; name a directory that can be written"));
}

/// Whether checkpoints can be written there is better known before the first epoch than after it.
void probe(const fs::path& directory) {
  std::error_code error;
  const fs::path file = directory / (".apex-probe." + std::to_string(::getpid()));
  const int fd = ::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) fail_to_write(directory, errno);
  ::close(fd);
  fs::remove(file, error);
}

/// The checkpoint directory as this run's own: nobody else writes there meanwhile.
class Claim {
 public:
  explicit Claim(const fs::path& directory) {
    std::error_code error;
    for (fs::path p = fs::absolute(directory); !p.empty() && !fs::exists(p, error) && p != p.parent_path();
         p = p.parent_path())
      if (p.has_filename()) made_.push_back(p);
    try {
      fs::create_directories(directory, error);
      if (error) fail_to_write(directory, error.value());
      probe(directory);
      lock_.emplace(directory);
    } catch (...) {
      remove_made();
      throw;
    }
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    lock_.reset();
    remove_made();
  }

 private:
  void remove_made() const noexcept {
    std::error_code error;
    for (const auto& folder : made_)  // the innermost first; one with something in it stays
      if (!fs::remove(folder, error)) return;
  }

  std::vector<fs::path> made_;
  std::optional<io::DirectoryLock> lock_;
};

/// Of the process, which trains one model.
std::optional<Claim>& claim() {
  static std::optional<Claim> held;
  return held;
}

void take_claim(const fs::path& directory) {
  claim().reset();
  claim().emplace(directory);
}

/// Whether the run that saved `file` was started with the same --resume: a job that was requeued.
bool started_alike(const io::CheckpointFile& file, const TrainOptions& o) {
  const auto& config = file.attributes("config");
  const auto found = config.find("resume");
  const auto* text = found == config.end() ? nullptr : std::get_if<std::string>(&found->second);
  return text != nullptr && text->starts_with(o.resume + "  (");
}

/// Whether what --resume names is `directory` or something in it.
bool lies_in(const fs::path& resume, const fs::path& directory) {
  std::error_code ignored;
  const fs::path folder = fs::is_directory(resume, ignored) ? resume : resume.parent_path();
  return fs::equivalent(folder.empty() ? "." : folder, directory, ignored);
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
    // A requeued job goes on from its own newest checkpoint: what it was started from may have moved on since (a folder
    // that its own run still writes to), or be gone.
    if (!o.evaluate && !there.empty() && !lies_in(o.resume, directory)) {
      const auto newest = io::open_checkpoint(directory, verify);
      if (started_alike(newest, o)) {
        log_warning(concat("--resume: this run has gone on from '", o.resume, "' before; it continues from '",
                           newest.path().string(), "'"));
        return newest.path();
      }
    }
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
        if (trains && there) take_claim(options.checkpoint_dir);
        found = look(options).string();
        if (trains && !there) take_claim(options.checkpoint_dir);
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
        out.config = file.attributes("config");
        out.position.step = file.step();
        out.position.epoch = io::attribute<std::int64_t>(sampler, "epoch", where);
        out.position.index = io::attribute<std::int64_t>(sampler, "index", where);
        out.global_batch = io::attribute<std::int64_t>(sampler, "global_batch", where);
      },
      "reading the checkpoint's position");
  return out;
}

void give_back_directory() noexcept { claim().reset(); }

std::vector<std::string> changed_options(const std::vector<EffectiveOption>& configuration,
                                         const std::vector<std::string>& names, const io::Attributes& config) {
  std::vector<std::string> out;
  for (const auto& option : configuration) {
    if (std::find(names.begin(), names.end(), option.name) == names.end()) continue;
    const auto stored = config.find(option.name);
    const auto* text = stored == config.end() ? nullptr : std::get_if<std::string>(&stored->second);
    if (text == nullptr) continue;
    const std::string then = text->substr(0, text->rfind("  ("));
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("\"\"") : value; };
    if (then != option.value)
      out.push_back(concat(option.name, " is ", shown(option.value), " here, not ", shown(then)));
  }
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
