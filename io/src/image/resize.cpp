// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "resize.hpp"

#include <algorithm>
#include <cstring>

#include "apex/core/error.hpp"
#include "apex/core/triangle_filter.hpp"
#include "apex/io/image/transform.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace apex::io {
namespace {

/// The inputs that one output depends on: from first on, count of them.
struct Reach {
  int first, count;
};

Reach reach_of(const TriangleFilter& filter, int output) {
  const int first = filter.begin(output);
  return {first, filter.end(output) - first};
}

/// Along one axis: output i is the sum of at most `taps` weighted inputs, those of reach[i].
struct Filter {
  int taps = 0;
  std::vector<Reach> reach;
  std::vector<std::int32_t> weights;

  const std::int32_t* of(int i) const { return weights.data() + static_cast<std::size_t>(i) * taps; }
};

/// For outputs begin .. begin+count of `out`, whose inputs are counted from `origin` on.
Filter triangle_filter(int in, int out, int begin, int count, int origin) {
  const TriangleFilter triangle(in, out);
  Filter filter;
  filter.taps = triangle.most_taps();
  filter.reach.resize(count);
  filter.weights.assign(static_cast<std::size_t>(count) * filter.taps, 0);
  for (int i = 0; i < count; ++i) {
    const Reach reach = reach_of(triangle, begin + i);
    filter.reach[i] = {reach.first - origin, reach.count};
    triangle.weights(begin + i, filter.weights.data() + static_cast<std::size_t>(i) * filter.taps);
  }
  return filter;
}

/// Output i becomes output count-1-i.
void mirror(Filter& filter) {
  std::reverse(filter.reach.begin(), filter.reach.end());
  const auto count = filter.reach.size();
  const auto taps = static_cast<std::ptrdiff_t>(filter.taps);
  for (std::size_t a = 0, b = count; a + 1 < b; ++a) {
    --b;
    const auto one = filter.weights.begin() + static_cast<std::ptrdiff_t>(a) * taps;
    std::swap_ranges(one, one + taps, filter.weights.begin() + static_cast<std::ptrdiff_t>(b) * taps);
  }
}

template <int C>
void resize_pixel(const std::uint8_t* from, const std::int32_t* weights, int count, std::uint8_t* out) {
  std::int32_t sum[C];
  for (auto& s : sum) s = TriangleFilter::kHalf;
  for (int k = 0; k < count; ++k, from += C)
    for (int c = 0; c < C; ++c) sum[c] += from[c] * weights[k];
  for (int c = 0; c < C; ++c) out[c] = TriangleFilter::to_byte(sum[c]);
}

/// Makes rows of one width from rows of another.
class RowResizer {
 public:
  RowResizer(const Filter& filter, int in_width, int channels) : filter_(filter), channels_(channels) {
    if (channels < 1 || channels > 4)
      fail(Kind::argument, concat("resize_bilinear: ", channels, " channels, takes 1 to 4"));
#ifdef __AVX2__
    if (channels == 3) pair_up(in_width);
#else
    static_cast<void>(in_width);
#endif
  }

  void operator()(const std::uint8_t* in, std::uint8_t* out) const {
    switch (channels_) {
      case 1: return plain<1>(in, out, 0, width());
      case 2: return plain<2>(in, out, 0, width());
      case 4: return plain<4>(in, out, 0, width());
      default: break;
    }
#ifdef __AVX2__
    plain<3>(in, out, 0, fast_begin_);
    fast(in, out);
    plain<3>(in, out, fast_end_, width());
#else
    plain<3>(in, out, 0, width());
#endif
  }

 private:
  int width() const { return static_cast<int>(filter_.reach.size()); }

  template <int C>
  void plain(const std::uint8_t* in, std::uint8_t* out, int begin, int end) const {
    for (int x = begin; x < end; ++x)
      resize_pixel<C>(in + static_cast<std::ptrdiff_t>(filter_.reach[x].first) * C, filter_.of(x),
                      filter_.reach[x].count, out + static_cast<std::ptrdiff_t>(x) * C);
  }

#ifdef __AVX2__
  // Of RGB, which loops over three channels leave unvectorised, two inputs are multiplied and added by one instruction
  // on 16-bit numbers. A weight of 23 bits is split for it: the lower half of a register sums the upper bits' products,
  // the upper half those of the lower bits. Nothing is rounded, so the sum is the plain one.
  static constexpr int kSplit = 11;
  static constexpr int kStep = 4;        // inputs of one load
  static constexpr int kLoadPixels = 6;  // begun by its 16 bytes

  /// The weights of inputs 2j and 2j+1 of an output, four times the upper bits and four times the lower ones.
  struct alignas(32) Pair {
    std::int16_t weights[16];
  };

  void pair_up(int in_width) {
    steps_ = (filter_.taps + kStep - 1) / kStep;
    pairs_.resize(filter_.reach.size() * steps_ * 2);
    // The outputs whose loads stay inside the row: all but some at the end where the inputs end, which is the left one
    // of a mirrored row.
    const auto inside = [&](int x) { return filter_.reach[x].first + (steps_ - 1) * kStep + kLoadPixels <= in_width; };
    fast_end_ = width();
    while (fast_begin_ < fast_end_ && !inside(fast_begin_)) ++fast_begin_;
    while (fast_end_ > fast_begin_ && !inside(fast_end_ - 1)) --fast_end_;
    for (int x = 0; x < width(); ++x)
      for (int k = 0; k < filter_.reach[x].count; ++k) {
        const std::int32_t weight = filter_.of(x)[k];
        Pair& pair = pairs_[static_cast<std::size_t>(x) * steps_ * 2 + k / 2];
        for (int l = 0; l < 4; ++l) {
          pair.weights[2 * l + k % 2] = static_cast<std::int16_t>(weight >> kSplit);
          pair.weights[8 + 2 * l + k % 2] = static_cast<std::int16_t>(weight & ((1 << kSplit) - 1));
        }
      }
  }

  void fast(const std::uint8_t* in, std::uint8_t* out) const {
    const __m256i first_two = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                               0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m256i next_two = _mm256_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,  //
                                              6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    for (int x = fast_begin_; x < fast_end_; ++x) {
      const std::uint8_t* from = in + static_cast<std::ptrdiff_t>(filter_.reach[x].first) * 3;
      const Pair* pair = pairs_.data() + static_cast<std::size_t>(x) * steps_ * 2;
      __m256i sum = _mm256_setzero_si256();
      for (int k = 0; k < filter_.reach[x].count; k += kStep, from += 3 * kStep, pair += 2) {
        const __m256i pixels = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const auto add = [&](const __m256i& which, const Pair& weights) {
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, which),
                                                        _mm256_load_si256(reinterpret_cast<const __m256i*>(&weights))));
        };
        add(first_two, pair[0]);
        add(next_two, pair[1]);
      }
      const __m128i upper = _mm_slli_epi32(_mm256_castsi256_si128(sum), kSplit);
      const __m128i total =
          _mm_add_epi32(_mm_add_epi32(upper, _mm256_extracti128_si256(sum, 1)), _mm_set1_epi32(TriangleFilter::kHalf));
      const __m128i words = _mm_packus_epi32(_mm_srai_epi32(total, TriangleFilter::kFractionBits), _mm_setzero_si128());
      const int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
      std::memcpy(out + static_cast<std::ptrdiff_t>(x) * 3, &bytes, 3);
    }
  }

  int steps_ = 0;  // loads for the output with the most inputs
  int fast_begin_ = 0, fast_end_ = 0;
  std::vector<Pair> pairs_;
#endif
  const Filter& filter_;
  int channels_;
};

/// One row of the result from `count` rows of `bytes` bytes, `stride` apart.
void blend_rows(const std::uint8_t* from, std::ptrdiff_t stride, const std::int32_t* weights, int count, int bytes,
                std::uint8_t* out) {
  constexpr int kLanes = 32;  // sums that stay in registers over all rows
  for (int x = 0; x < bytes; x += kLanes) {
    const int lanes = std::min(kLanes, bytes - x);
    std::int32_t sums[kLanes];
    std::fill(sums, sums + kLanes, TriangleFilter::kHalf);
    if (lanes == kLanes)
      for (int k = 0; k < count; ++k)
        for (int l = 0; l < kLanes; ++l) sums[l] += from[k * stride + x + l] * weights[k];
    else
      for (int k = 0; k < count; ++k)
        for (int l = 0; l < lanes; ++l) sums[l] += from[k * stride + x + l] * weights[k];
    for (int l = 0; l < lanes; ++l) out[x + l] = TriangleFilter::to_byte(sums[l]);
  }
}

/// The inputs that outputs begin .. begin+count of an axis depend on.
Reach reach_of(int in, int out, int begin, int count) {
  const TriangleFilter filter(in, out);
  const Reach first = reach_of(filter, begin), last = reach_of(filter, begin + count - 1);
  return {first.first, last.first + last.count - first.first};
}

void check_sizes(std::string_view who, int width, int height, int to_width, int to_height) {
  if (width < 1 || height < 1 || to_width < 1 || to_height < 1)
    fail(Kind::argument,
         concat(who, ": from ", width, 'x', height, " to ", to_width, 'x', to_height, ", sizes must be at least 1"));
}

}  // namespace

CropBox resize_reach(int source_width, int source_height, const ResizeWindow& wanted) {
  const CropBox& w = wanted.window;
  const Reach across = reach_of(source_width, wanted.width, w.left, w.width);
  const Reach down = reach_of(source_height, wanted.height, w.top, w.height);
  return {across.first, down.first, across.count, down.count};
}

void resize_window(const PartView& source, const ResizeWindow& wanted, std::uint8_t* out, std::ptrdiff_t stride) {
  const CropBox& w = wanted.window;
  const int channels = source.pixels.channels;
  const CropBox reach = resize_reach(source.width, source.height, wanted);
  Filter across = triangle_filter(source.width, wanted.width, w.left, w.width, source.box.left);
  if (wanted.mirrored) mirror(across);
  const RowResizer resize_row(across, source.pixels.width, channels);
  const Filter down = triangle_filter(source.height, wanted.height, w.top, w.height, reach.top);

  Image narrow(w.width, reach.height, channels);
  for (int y = 0; y < reach.height; ++y) resize_row(source.pixels.row(reach.top - source.box.top + y), narrow.row(y));
  const auto row_bytes = static_cast<std::ptrdiff_t>(narrow.row_bytes());
  for (int y = 0; y < w.height; ++y)
    blend_rows(narrow.row(down.reach[y].first), row_bytes, down.of(y), down.reach[y].count, static_cast<int>(row_bytes),
               out + y * stride);
}

Image resize_bilinear(const ImageView& image, int width, int height) {
  check_sizes("resize_bilinear", image.width, image.height, width, height);
  Image out(width, height, image.channels);
  resize_window(whole(image), {width, height, {0, 0, width, height}}, out.pixels.data(),
                static_cast<std::ptrdiff_t>(out.row_bytes()));
  return out;
}

ImageSize shorter_side_size(int width, int height, int size) {
  check_sizes("resize_shorter_side", width, height, size, size);
  const auto longer = [size](int other, int shorter) {
    return static_cast<int>(static_cast<std::int64_t>(size) * other / shorter);
  };
  if (width <= height) return {size, longer(height, width)};
  return {longer(width, height), size};
}

Image resize_shorter_side(const ImageView& image, int size) {
  const auto to = shorter_side_size(image.width, image.height, size);
  return resize_bilinear(image, to.width, to.height);
}

}  // namespace apex::io
