// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace apex::io {

/// What one rank hashes and writes in one go: a whole dataset under 4 MiB, or a 4 MiB block of a larger one.
struct Block {
  std::size_t dataset = 0;
  std::int64_t offset = 0;  ///< in the dataset
  std::int64_t bytes = 0;
  int owner = 0;
};

/// The blocks of datasets of these sizes, in file order, with owners such that every rank has about the same bytes:
/// the largest first, each to the rank that has least. The same on every rank.
std::vector<Block> assign_blocks(std::span<const std::int64_t> dataset_bytes, int ranks);
std::vector<std::int64_t> bytes_per_owner(std::span<const Block> blocks, int ranks);

}  // namespace apex::io
