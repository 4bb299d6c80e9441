// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apex/io/checkpoint.hpp"

namespace apex::checkpoint_tools {

using Path = std::filesystem::path;

// Each prints to stdout and returns the exit code; what cannot be read is thrown as apex::Error.

/// A directory: its step files. A file: its groups and datasets.
int list(const Path& path);
/// Reads everything and checks every sum; a directory means all of its step files.
int verify(const std::vector<Path>& paths);
/// The whole in a page, or one group or dataset with its attributes.
int show(const Path& path, const std::string& object);
/// Group by group, whether two checkpoints hold the same bits. @returns 1 when a group that must be the same is not
int diff(const Path& a, const Path& b);

// format.cpp
std::string to_text(const io::AttributeValue& value);
std::string describe(const io::DatasetInfo& info);
std::string bytes_text(std::int64_t bytes);
/// The part of `path` before its first '/'.
std::string top_of(const std::string& path);

}  // namespace apex::checkpoint_tools
