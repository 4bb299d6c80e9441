// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "layout.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "tree.hpp"

namespace apex::io {

std::vector<Block> assign_blocks(std::span<const std::int64_t> dataset_bytes, int ranks) {
  std::vector<Block> blocks;
  for (std::size_t d = 0; d < dataset_bytes.size(); ++d)
    for (std::int64_t offset = 0; offset < dataset_bytes[d]; offset += kBlockBytes)
      blocks.push_back({d, offset, std::min(kBlockBytes, dataset_bytes[d] - offset), 0});

  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return blocks[a].bytes > blocks[b].bytes; });

  using Load = std::pair<std::int64_t, int>;  // bytes, rank: ties go to the lower rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int r = 0; r < ranks; ++r) loads.push({0, r});
  for (const auto i : order) {
    auto [bytes, rank] = loads.top();
    loads.pop();
    blocks[i].owner = rank;
    loads.push({bytes + blocks[i].bytes, rank});
  }
  return blocks;
}

std::vector<std::int64_t> bytes_per_owner(std::span<const Block> blocks, int ranks) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks), 0);
  for (const auto& block : blocks) bytes[static_cast<std::size_t>(block.owner)] += block.bytes;
  return bytes;
}

}  // namespace apex::io
