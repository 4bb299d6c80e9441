// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "../multi_tensor_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

// Threads share the elements of all tensors laid end to end; a piece is worked on in blocks that stay in the
// first-level cache, staged in the compute type where the storage type is another.

namespace apex::kernels::cpu {

inline constexpr std::int64_t kBlock = 1024;

/// Where each tensor begins among all elements, and the total.
template <class V>
std::vector<std::int64_t> starts_of(std::span<const V> tensors) {
  std::vector<std::int64_t> start{0};
  for (const auto& t : tensors) start.push_back(start.back() + t.numel());
  return start;
}

/// Calls piece(tensor, begin, end) so that all elements of all tensors are covered, in parallel.
template <class V, class F>
void for_each_piece(std::span<const V> tensors, F&& piece) {
  const auto start = starts_of(tensors);
  parallel_ranges(start.back(), 1, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(start.begin(), start.end(), begin) - start.begin() - 1);
    for (; i < tensors.size() && start[i] < end; ++i) {
      const std::int64_t from = std::max(begin, start[i]), to = std::min(end, start[i + 1]);
      if (from < to) piece(i, from - start[i], to - start[i]);
    }
  });
}

/// n elements of `v` from `at` on in type C: where they are, or converted into `buffer`.
template <class C>
const C* staged(const ConstView& v, std::int64_t at, std::int64_t n, C* buffer) {
  if (v.dtype == dtype_of<C>) return v.as<C>() + at;
  visit_floating(v.dtype, "multi_tensor", [&]<class T>() { load_block(buffer, v.as<T>() + at, 1, n); });
  return buffer;
}

/// Where results for elements of `v` are formed: in place, or in `buffer` until put back.
template <class C>
C* target(const View& v, std::int64_t at, C* buffer) {
  return v.dtype == dtype_of<C> ? v.as<C>() + at : buffer;
}
template <class C>
void put_back(const View& v, std::int64_t at, std::int64_t n, const C* values) {
  if (v.dtype == dtype_of<C>) return;
  visit_floating(v.dtype, "multi_tensor", [&]<class T>() { store_block(v.as<T>() + at, 1, values, n); });
}

template <class C>
bool any_bad(const C* x, std::int64_t n) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (std::int64_t i = 0; i < n; ++i) bad |= !(std::abs(x[i]) <= std::numeric_limits<C>::max());
  return bad != 0;
}

/// Non-finite once stored: a value beyond the storage type's range has become infinite.
template <class C>
bool stored_bad(const View& v, std::int64_t at, std::int64_t n) {
  C buffer[kBlock];
  return any_bad(staged<C>(v, at, n, buffer), n);
}

inline void raise(const View& flag, bool bad) {
  if (bad && flag.defined()) *flag.as<std::int32_t>() = 1;
}

/// Calls f.operator()<C>() with f64 if any of the lists is f64, else f32.
template <class F>
void with_compute_type(bool wide, F&& f) {
  wide ? f.template operator()<double>() : f.template operator()<float>();
}
template <class V>
bool is_wide(std::span<const V> list) {
  return !list.empty() && list[0].dtype == DType::f64;
}

template <class F>
void in_blocks(std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t at = begin; at < end; at += kBlock) f(at, std::min(kBlock, end - at));
}

/// Stores `values` whatever the dtype of `v`.
template <class C>
void put_copy(const View& v, std::int64_t at, std::int64_t n, const C* values) {
  visit_floating(v.dtype, "multi_tensor", [&]<class T>() { store_block(v.as<T>() + at, 1, values, n); });
}

/// Adds up to K sums for each tensor: block(tensor, at, n, sums) adds what n elements give. Chunks are summed on their
/// own and then in order, so the number of threads does not matter. check(sums of a chunk) sees each once.
template <int K, class V, class F, class Check>
void sum_tensors(const Context& ctx, std::span<const V> tensors, std::int64_t chunk_size, double* out, F&& block,
                 Check&& check) {
  struct Chunk {
    std::size_t tensor;
    std::int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t n = tensors[i].numel();
    total += n;
    for (std::int64_t at = 0; at < n; at += chunk_size) chunks.push_back({i, at, std::min(at + chunk_size, n)});
  }
  const Workspace memory = ctx.workspace(chunks.size() * K * sizeof(double));
  double* sums = memory.as<double>();
  const auto count = static_cast<std::int64_t>(chunks.size());
  if (count > 0)
    parallel_for(count, total / count + 1, [&](std::int64_t k) {
      const Chunk& c = chunks[static_cast<std::size_t>(k)];
      std::fill_n(sums + k * K, K, 0.0);
      in_blocks(c.begin, c.end, [&](std::int64_t at, std::int64_t n) { block(c.tensor, at, n, sums + k * K); });
    });
  std::fill_n(out, tensors.size() * K, 0.0);
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    check(sums + k * K);
    for (std::size_t j = 0; j < K; ++j) out[chunks[k].tensor * K + j] += sums[k * K + j];
  }
}

/// The largest |x * scale| of each tensor; NaN if there is one.
template <class C>
void max_tensors(std::span<const ConstView> tensors, C scale, C* largest) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ConstView& v = tensors[i];
    const auto pieces = (v.numel() + kDefaultChunk - 1) / kDefaultChunk;
    std::vector<C> each(static_cast<std::size_t>(pieces));
    parallel_for(pieces, kDefaultChunk, [&](std::int64_t k) {
      C best = C(0);
      in_blocks(k * kDefaultChunk, std::min((k + 1) * kDefaultChunk, v.numel()), [&](std::int64_t at, std::int64_t n) {
        C buffer[kBlock];
        const C* x = staged<C>(v, at, n, buffer);
        best = simd::max<C>(n, best, [=](std::int64_t j) { return std::abs(x[j] * scale); });
      });
      each[static_cast<std::size_t>(k)] = best;
    });
    largest[i] = simd::max<C>(pieces, C(0), [&](std::int64_t k) { return each[static_cast<std::size_t>(k)]; });
  }
}

}  // namespace apex::kernels::cpu
