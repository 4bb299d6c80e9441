// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"
#include "parallel.hpp"
#include "vec.hpp"

// Loops over a tensor with per-channel values, in both layouts: what batch normalisation is made of.

namespace apex::kernels::cpu {

/// rows: memory is [n * inner][c] (channels-last); else [n][c][inner].
struct ChannelLayout {
  std::int64_t n = 0, c = 0, inner = 1;
  bool rows = false;

  explicit ChannelLayout(const ConstView& x) : n(x.size(0)), c(x.size(1)) {
    for (int d = 2; d < x.rank(); ++d) inner *= x.sizes[d];
    rows = inner == 1 || !x.is_contiguous();
  }
  std::int64_t values_per_channel() const { return n * inner; }
};

/// body.operator()<Ops>(at, get) for all elements: `at` is the position in memory, get(array) the channel's values.
template <class A, class Body>
void for_each_element(const ChannelLayout& l, Body&& body) {
  if (l.rows) {
    parallel_ranges(l.n * l.inner, l.c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        for_each_vector<A>(0, l.c, [&]<class Ops>(std::int64_t channel) {
          body.template operator()<Ops>(row * l.c + channel, [&](const A* p) { return Ops::load(p + channel); });
        });
    });
  } else {
    parallel_ranges(l.n * l.c, l.inner, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane)
        for_each_vector<A>(plane * l.inner, (plane + 1) * l.inner, [&]<class Ops>(std::int64_t at) {
          body.template operator()<Ops>(at, [&](const A* p) { return Ops::spread(p[plane % l.c]); });
        });
    });
  }
}

/// The values of a channel are summed in groups whose bounds depend on sizes only; a group fits the second-level cache,
/// so that what needs a second look at it costs no memory traffic.
struct ChannelGroups {
  std::int64_t length = 1;    // values per channel in a full group
  std::int64_t per_line = 1;  // groups in one line: all rows, or one plane
  std::int64_t line = 1;      // values per channel in a line
  std::int64_t count = 0;

  explicit ChannelGroups(const ChannelLayout& l) {
    length = l.rows ? std::clamp<std::int64_t>(16384 / std::max<std::int64_t>(l.c, 1), 32, 1024) : 8192;
    line = l.rows ? l.n * l.inner : l.inner;
    per_line = (line + length - 1) / length;
    count = l.rows ? per_line : l.n * per_line;
  }
  std::int64_t begin(std::int64_t group) const { return group % per_line * length; }
  std::int64_t end(std::int64_t group) const { return std::min(begin(group) + length, line); }
  std::int64_t size(std::int64_t group) const { return end(group) - begin(group); }
};

/// Column sums over rows [begin, end) for Vectors * Ops::width channels from `channel` on, even and odd rows apart so
/// that additions do not wait for each other.
template <class Ops, int Vectors, int Sums, class A, class Body>
void sum_rows(std::int64_t begin, std::int64_t end, std::int64_t channels, std::int64_t channel, A* out, Body& body) {
  using Value = typename Ops::Value;
  Value even[Vectors][Sums] = {}, odd[Vectors][Sums] = {};
  const auto add = [&](std::int64_t row, Value(&sums)[Vectors][Sums]) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      const std::int64_t at = channel + v * Ops::width;
      body.template operator()<Ops>(
          row * channels + at, [&](const A* p) { return Ops::load(p + at); }, sums[v]);
    }
  };
  std::int64_t row = begin;
  for (; row + 2 <= end; row += 2) {
    add(row, even);
    add(row + 1, odd);
  }
  if (row < end) add(row, even);
  for (int v = 0; v < Vectors; ++v)
    for (int s = 0; s < Sums; ++s) Ops::store(out + s * channels + channel + v * Ops::width, even[v][s] + odd[v][s]);
}

/// Sums along one plane's values [begin, end) in four vectors.
template <int Sums, class A, class Body>
void sum_plane(std::int64_t begin, std::int64_t end, std::int64_t channels, std::int64_t channel, A* out, Body& body) {
  using Ops = VectorOps<A>;
  typename Ops::Value part[4][Sums] = {};
  std::int64_t at = begin;
  const auto vector_values = [&](const A* p) { return Ops::spread(p[channel]); };
  for (; at + 4 * Ops::width <= end; at += 4 * Ops::width)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) body.template operator()<Ops>(at + v * Ops::width, vector_values, part[v]);
  for (; at + Ops::width <= end; at += Ops::width) body.template operator()<Ops>(at, vector_values, part[0]);
  A tail[Sums] = {};
  for (; at < end; ++at)
    body.template operator()<ScalarOps<A>>(
        at, [&](const A* p) { return p[channel]; }, tail);
  for (int s = 0; s < Sums; ++s)
    out[s * channels + channel] = Ops::total((part[0][s] + part[2][s]) + (part[1][s] + part[3][s])) + tail[s];
}

/// out[s * c + channel] = sums over one group: of all channels (rows), or of the one given (planes).
/// body.operator()<Ops>(at, get, sums) adds the terms of the elements at `at`.
template <int Sums, class A, class Body>
void sum_group(const ChannelLayout& l, const ChannelGroups& groups, std::int64_t group, std::int64_t channel, A* out,
               Body&& body) {
  const std::int64_t begin = groups.begin(group), end = groups.end(group);
  if (!l.rows) {
    const std::int64_t base = (group / groups.per_line * l.c + channel) * l.inner;
    return sum_plane<Sums>(base + begin, base + end, l.c, channel, out, body);
  }
  using V = VectorOps<A>;
  std::int64_t c = 0;
  for (; c + 2 * V::width <= l.c; c += 2 * V::width) sum_rows<V, 2, Sums>(begin, end, l.c, c, out, body);
  for (; c + V::width <= l.c; c += V::width) sum_rows<V, 1, Sums>(begin, end, l.c, c, out, body);
  for (; c < l.c; ++c) sum_rows<ScalarOps<A>, 1, Sums>(begin, end, l.c, c, out, body);
}

/// Calls task(group, channel) for all groups (rows; channel is 0) or all groups and channels (planes).
template <class Task>
void for_each_group(const ChannelLayout& l, const ChannelGroups& groups, Task&& task) {
  const std::int64_t per_group = l.rows ? 1 : l.c;
  parallel_for(groups.count * per_group, groups.length * (l.rows ? l.c : 1),
               [&](std::int64_t i) { task(i / per_group, i % per_group); });
}

/// Sums over all values of each channel: groups in A, their sums in f64 and in order. totals is [Sums][c].
template <int Sums, class A, class Body>
void sum_channels(const Context& ctx, const ChannelLayout& l, double* totals, Body&& body) {
  const ChannelGroups groups(l);
  const Workspace scratch = ctx.workspace(static_cast<std::size_t>(groups.count * Sums * l.c) * sizeof(A));
  A* partial = scratch.as<A>();
  for_each_group(l, groups, [&](std::int64_t group, std::int64_t channel) {
    sum_group<Sums>(l, groups, group, channel, partial + group * Sums * l.c, body);
  });
  parallel_ranges(Sums * l.c, groups.count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) totals[i] = 0;
    for (std::int64_t g = 0; g < groups.count; ++g)
      for (std::int64_t i = begin; i < end; ++i) totals[i] += static_cast<double>(partial[g * Sums * l.c + i]);
  });
}

}  // namespace apex::kernels::cpu
