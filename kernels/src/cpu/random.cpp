// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <numbers>

#include "../random_impl.hpp"
#include "apex/core/philox.hpp"
#include "convert.hpp"
#include "loop.hpp"

namespace apex::kernels::cpu {
namespace {

/// The words of one call, by position; neighbours share one evaluation of Philox.
class Words {
 public:
  explicit Words(const RandomState& s) {
    const std::uint64_t offset = s.offset + (s.base == nullptr ? 0 : static_cast<std::uint64_t>(*s.base));
    key_ = {{static_cast<std::uint32_t>(s.seed),
             static_cast<std::uint32_t>(s.seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)}};
    offset_ = static_cast<std::uint32_t>(offset);
  }

  std::uint32_t at(std::uint64_t e) {
    load(e / 4);
    return block_.v[e % 4];
  }
  /// A normal number; positions 2m and 2m + 1 share two words.
  double normal_at(std::uint64_t e) {
    load(e / 4);
    const std::uint64_t first = e % 4 / 2 * 2;
    const double u = (static_cast<double>(block_.v[first]) + 1.0) * 0x1p-32;
    const double angle = 2.0 * std::numbers::pi * (static_cast<double>(block_.v[first + 1]) * 0x1p-32);
    return std::sqrt(-2.0 * std::log(u)) * (e % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }

 private:
  void load(std::uint64_t block) {
    if (block == loaded_) return;
    block_ = Philox4x32::generate(
        {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0x80000000u, offset_}}, key_);
    loaded_ = block;
  }
  Philox4x32::Key key_{};
  std::uint32_t offset_ = 0;
  std::uint64_t loaded_ = ~std::uint64_t{0};
  Philox4x32::Counter block_{};
};

/// Calls f(words, e, offsets) for every element: e its position among all rows, offsets where it lies in each operand.
template <int N, class F>
void for_each_position(const std::array<Dims, N>& strides, const Dims& sizes, const RandomState& state, F&& f) {
  // Consecutive rows are one long row; else dimension 0 is walked apart.
  const bool whole = sizes.empty() || (state.first_row == 0 && state.row_stride == 1);
  Dims row_sizes = sizes;
  if (!whole) row_sizes[0] = 1;
  const auto loop = make_loop<N>(row_sizes, strides, Order::logical);
  const std::int64_t rows = whole ? 1 : sizes[0], length = loop.numel;
  parallel_ranges(rows * length, 8, [&](std::int64_t begin, std::int64_t end) {
    Words words(state);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t row = at / length, stop = std::min(end, (row + 1) * length);
      auto e =
          static_cast<std::uint64_t>((whole ? 0 : state.first_row + row * state.row_stride) * length + at % length);
      std::array<std::int64_t, N> base{};
      if (!whole)
        for (std::size_t k = 0; k < N; ++k) base[k] = row * strides[k][0];
      for_each_row(loop, at - row * length, stop - row * length, [&](auto offset, std::int64_t n) {
        for (std::size_t k = 0; k < N; ++k) offset[k] += base[k];
        for (std::int64_t i = 0; i < n; ++i, ++e) {
          f(words, e, offset);
          for (int k = 0; k < N; ++k) offset[static_cast<std::size_t>(k)] += loop.inner_stride(k);
        }
      });
      at = stop;
    }
  });
}

std::uint64_t threshold(double p) { return static_cast<std::uint64_t>(std::llround(p * 0x1p32)); }

}  // namespace

void uniform(const Context&, View out, double low, double high, const RandomState& state) {
  visit_floating(out.dtype, "uniform", [&]<class T>() {
    T* to = out.as<T>();
    for_each_position<1>({out.strides}, out.sizes, state, [=](Words& words, std::uint64_t e, const auto& at) {
      to[at[0]] = convert<T>(low + (high - low) * static_cast<double>(Philox4x32::uniform(words.at(e))));
    });
  });
}

void normal(const Context&, View out, double mean, double std, const RandomState& state) {
  visit_floating(out.dtype, "normal", [&]<class T>() {
    T* to = out.as<T>();
    for_each_position<1>({out.strides}, out.sizes, state, [=](Words& words, std::uint64_t e, const auto& at) {
      to[at[0]] = convert<T>(mean + std * words.normal_at(e));
    });
  });
}

void bernoulli(const Context&, View out, double p, const RandomState& state) {
  const std::uint64_t limit = threshold(p);
  visit_any(out.dtype, "bernoulli", [&]<class T>() {
    T* to = out.as<T>();
    for_each_position<1>({out.strides}, out.sizes, state, [=](Words& words, std::uint64_t e, const auto& at) {
      to[at[0]] = convert<T>(words.at(e) < limit ? 1.0f : 0.0f);
    });
  });
}

void dropout(const Context&, View y, View mask, ConstView x, double p, const RandomState& state) {
  const std::uint64_t limit = threshold(1 - p);
  bool* kept = mask.defined() ? mask.as<bool>() : nullptr;
  visit_floating(y.dtype, "dropout", [&]<class T>() {
    using C = compute_t<T>;
    const C scale = p == 1 ? C(0) : static_cast<C>(1.0 / (1.0 - p));
    T* to = y.as<T>();
    const T* from = x.as<T>();
    for_each_position<3>({y.strides, x.strides, mask.defined() ? mask.strides : y.strides}, y.sizes, state,
                         [=](Words& words, std::uint64_t e, const auto& at) {
                           const bool keep = words.at(e) < limit;
                           to[at[0]] = keep ? convert<T>(convert<C>(from[at[1]]) * scale) : T{};
                           if (kept != nullptr) kept[at[2]] = keep;
                         });
  });
}

}  // namespace apex::kernels::cpu
