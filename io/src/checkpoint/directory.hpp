// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

#include "apex/io/checkpoint.hpp"

namespace apex::io {

/// "step_00000100.h5".
std::string step_file_name(std::int64_t step);
/// Without its domain.
std::string host_name();
/// ".tmp.<job>.<restart>", the same for the whole life of this process.
const std::string& temporary_suffix();
/// Removes the temporary files that dead jobs left: those of an earlier start of this job, those of processes of this
/// host that are gone, and any other that has not been touched for an hour. Never fails.
void remove_stale_temporaries(const std::filesystem::path& directory) noexcept;
/// "LATEST" and "BEST".
bool is_note_name(const std::string& name);
/// The step file that such a note names. @throws Kind::data when it names none that is there
std::filesystem::path named_by_note(const std::filesystem::path& note);
/// Replaces `directory`/`name` as a whole: temporary file, fsync, rename, fsync of the directory. Passes the fault
/// points "before_<label>", "mid_<label>", "after_<label>" unless `label` is null.
void write_note(const std::filesystem::path& directory, const std::string& name, const std::string& text,
                const char* label = nullptr);
/// Deletes the oldest step files beyond `keep`; not `written`, not what BEST names, not `loaded_from`. What cannot be
/// deleted is warned about.
std::vector<std::filesystem::path> prune(const std::filesystem::path& directory, int keep,
                                         const std::filesystem::path& written,
                                         const std::filesystem::path& loaded_from);

}  // namespace apex::io
