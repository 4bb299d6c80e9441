// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <numbers>

#include "../copy_impl.hpp"
#include "../random_impl.hpp"
#include "apex/core/philox.hpp"
#include "elementwise.cuh"

// A thread evaluates Philox once and writes the up to four elements that share its words.

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// The elements of a call: `rows` rows of `length` positions, row r from position (first + r * stride) * length on.
template <int N>
struct Positions {
  Index<N> row;  // within a row, in row-major order
  std::int64_t rows, length, first, stride;
  std::int64_t row_stride[N];
  std::int64_t tasks;  // groups of four positions that may touch a row
  bool together;       // whole groups lie at aligned addresses in every operand
  std::uint64_t seed, offset;
  const std::int64_t* base;  // of the offset; may be null
};

/// G gives one(words, lane, addresses) and, where `together`, four(words, address).
template <int N, class G>
__global__ void __launch_bounds__(kThreads) draw(G g, Positions<N> s) {
  const std::int64_t task = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = s.rows == 1 ? 0 : task / s.tasks;
  if (row >= s.rows || task - row * s.tasks >= s.tasks) return;
  const auto begin = static_cast<std::uint64_t>((s.first + row * s.stride) * s.length);
  const std::uint64_t block = begin / 4 + static_cast<std::uint64_t>(task - row * s.tasks);
  const std::uint64_t offset = s.offset + (s.base == nullptr ? 0 : static_cast<std::uint64_t>(*s.base));
  const auto words =
      Philox4x32::generate({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0x80000000u,
                             static_cast<std::uint32_t>(offset)}},
                           {{static_cast<std::uint32_t>(s.seed),
                             static_cast<std::uint32_t>(s.seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)}});
  const auto i = static_cast<std::int64_t>(block * 4 - begin);  // where the group starts in the row; may be before it
  if (s.together && i + 4 <= s.length) {
    g.four(words, i);
    return;
  }
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    if (i + lane < 0 || i + lane >= s.length) continue;
    auto at = s.row.at(i + lane);
#pragma unroll
    for (int k = 0; k < N; ++k) at.v[k] += row * s.row_stride[k];
    g.one(words, lane, at.v);
  }
}

template <int N>
Positions<N> positions(const Dims& sizes, const std::array<Dims, N>& strides, const RandomState& state) {
  // Consecutive rows from the first on are one long row; else dimension 0 is walked apart.
  const bool whole = sizes.empty() || (state.first_row == 0 && state.row_stride == 1);
  Dims row_sizes = sizes;
  if (!whole) row_sizes[0] = 1;
  Positions<N> s{};
  s.row = make_index<N>(row_sizes, strides, Order::logical);
  s.rows = whole ? 1 : sizes[0];
  s.length = s.row.numel;
  s.first = whole ? 0 : state.first_row;
  s.stride = whole ? 1 : state.row_stride;
  for (std::size_t k = 0; k < N && !whole; ++k) s.row_stride[k] = strides[k][0];
  s.tasks = whole ? ceil_div(s.length, 4) : s.length / 4 + 2;
  s.together = whole && s.row.rank == 1;
  for (int k = 0; k < N; ++k) s.together = s.together && s.row.stride[k][0] == 1;
  s.seed = state.seed;
  s.offset = state.offset;
  s.base = state.base;
  return s;
}

template <int N, class G>
void launch(const Context& ctx, const char* op, const G& g, const Positions<N>& s) {
  if (s.rows == 0 || s.length == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(s.rows * s.tasks, kThreads));
  draw<N><<<blocks, kThreads, 0, stream_of(ctx)>>>(g, s);
  check_launch(op);
}

/// Four elements at once; f64 in two accesses.
template <class N>
__device__ __forceinline__ void put_four(N* at, const N (&v)[4]) {
  constexpr int V = std::min(4, kVector<N>);
#pragma unroll
  for (int i = 0; i < 4; i += V) {
    Pack<N, V> p;
#pragma unroll
    for (int j = 0; j < V; ++j) p.v[j] = v[i + j];
    *reinterpret_cast<Pack<N, V>*>(at + i) = p;
  }
}
template <class N>
bool takes_four(const N* data) {
  return aligned_to(data, std::min<std::size_t>(16, 4 * sizeof(N)));
}

/// Writes value(words, lane) to out.
template <class N, class Value>
struct Draw {
  N* out;
  Value value;
  __device__ void one(const Philox4x32::Counter& w, int lane, const std::int64_t* at) const {
    out[at[0]] = convert<N>(value(w, lane));
  }
  __device__ void four(const Philox4x32::Counter& w, std::int64_t i) const {
    const N v[4] = {convert<N>(value(w, 0)), convert<N>(value(w, 1)), convert<N>(value(w, 2)), convert<N>(value(w, 3))};
    put_four(out + i, v);
  }
};

/// Products and sums are rounded one by one, as the CPU does: no fused multiply-add.
struct Uniform {
  double low, range;
  __device__ double operator()(const Philox4x32::Counter& w, int lane) const {
    return __dadd_rn(low, __dmul_rn(range, static_cast<double>(Philox4x32::uniform(w.v[lane]))));
  }
};

struct Normal {
  double mean, std;
  __device__ double operator()(const Philox4x32::Counter& w, int lane) const {
    const int first = lane / 2 * 2;
    const double u = (static_cast<double>(w.v[first]) + 1.0) * 0x1p-32;
    const double angle = 2.0 * std::numbers::pi * (static_cast<double>(w.v[first + 1]) * 0x1p-32);
    const double r = sqrt(-2.0 * log(u));
    return __dadd_rn(mean, __dmul_rn(std, __dmul_rn(r, lane % 2 == 0 ? cos(angle) : sin(angle))));
  }
};

struct Bernoulli {
  std::uint64_t limit;
  __device__ float operator()(const Philox4x32::Counter& w, int lane) const { return w.v[lane] < limit ? 1.0f : 0.0f; }
};

template <class N>
struct Dropout {
  N* y;
  bool* mask;  // may be null
  const N* x;
  std::uint64_t limit;
  compute_t<N> scale;

  __device__ N kept(N value, bool keep) const { return keep ? store<N>(load(value) * scale) : store<N>(0.0f); }
  __device__ void one(const Philox4x32::Counter& w, int lane, const std::int64_t* at) const {
    const bool keep = w.v[lane] < limit;
    y[at[0]] = kept(x[at[1]], keep);
    if (mask != nullptr) mask[at[2]] = keep;
  }
  __device__ void four(const Philox4x32::Counter& w, std::int64_t i) const {
    constexpr int V = std::min(4, kVector<N>);
    N v[4];
    bool keep[4];
#pragma unroll
    for (int j = 0; j < 4; j += V) {
      const auto p = *reinterpret_cast<const Pack<N, V>*>(x + i + j);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        keep[j + k] = w.v[j + k] < limit;
        v[j + k] = kept(p.v[k], keep[j + k]);
      }
    }
    put_four(y + i, v);
    if (mask != nullptr) put_four(mask + i, keep);
  }
};

constexpr int kOwn = 16;  // elements of a thread: they share the keys of Philox's rounds

/// The first word of the key in each round: from the host, so that the device adds nothing up.
struct RoundKeys {
  static constexpr int kRounds = 10;
  std::uint32_t v[kRounds];
};
constexpr std::uint32_t kFirstStep = 0x9E3779B9u, kSecondStep = 0xBB67AE85u;  // of a key from round to round

/// Dropout of whole packs that lie alike in all operands; `rest` elements follow them.
template <class N>
__global__ void __launch_bounds__(kThreads)
    dropout_packs(Dropout<N> d, std::int64_t packs, int rest, RoundKeys first_key, std::uint32_t seed_high,
                  std::uint64_t offset, const std::int64_t* base, bool past_cache) {
  constexpr int V = kVector<N>, kPacks = kOwn / V;
  static_assert(V % 4 == 0);
  if (base != nullptr) offset += static_cast<std::uint64_t>(*base);
  std::uint32_t second_key[RoundKeys::kRounds];
#pragma unroll
  for (int r = 0; r < RoundKeys::kRounds; ++r) {
    second_key[r] =
        (seed_high ^ static_cast<std::uint32_t>(offset >> 32)) + static_cast<std::uint32_t>(r) * kSecondStep;
    asm volatile("" : "+r"(second_key[r]));  // held: the compiler would add it up anew for every block
  }
  // Philox4x32::generate with the keys of all rounds at hand.
  const auto words_of = [&](std::int64_t block) {
    Philox4x32::Counter c{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0x80000000u,
                           static_cast<std::uint32_t>(offset)}};
#pragma unroll
    for (int r = 0; r < RoundKeys::kRounds; ++r) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.v[0], p1 = std::uint64_t{0xCD9E8D57u} * c.v[2];
      c = {{static_cast<std::uint32_t>(p1 >> 32) ^ c.v[1] ^ first_key.v[r], static_cast<std::uint32_t>(p1),
            static_cast<std::uint32_t>(p0 >> 32) ^ c.v[3] ^ second_key[r], static_cast<std::uint32_t>(p0)}};
    }
    return c;
  };
  const auto last = static_cast<std::uint32_t>(d.limit - 1);  // limit > 0
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads * kPacks) + threadIdx.x;
  Pack<N, V> read[kPacks];
#pragma unroll
  for (int u = 0; u < kPacks; ++u)
    if (first + u * kThreads < packs) read[u] = *reinterpret_cast<const Pack<N, V>*>(d.x + (first + u * kThreads) * V);
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    const std::int64_t p = first + u * kThreads;
    if (p >= packs) continue;
    Pack<N, V> y;
    Pack<bool, V> kept;
#pragma unroll
    for (int v = 0; v < V; v += 4) {
      const auto words = words_of(p * (V / 4) + v / 4);
      compute_t<N> value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        kept.v[v + i] = words.v[i] <= last;
        value[i] = kept.v[v + i] ? load(read[u].v[v + i]) * d.scale : compute_t<N>(0);
      }
      if constexpr (sizeof(N) == 2) {
        put_pair(&y.v[v], value[0], value[1]);
        put_pair(&y.v[v + 2], value[2], value[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) y.v[v + i] = value[i];
      }
    }
    put_pack(d.y + p * V, y, past_cache);
    if (d.mask != nullptr) *reinterpret_cast<Pack<bool, V>*>(d.mask + p * V) = kept;
  }
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < rest) {
    const std::int64_t e = packs * V + threadIdx.x, at[3] = {e, e, e};
    const auto words = words_of(e / 4);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane)
      if (e % 4 == lane) d.one(words, lane, at);
  }
}

template <class T, class Value>
void draw_into(const Context& ctx, const char* op, const View& out, const RandomState& state, const Value& value) {
  auto s = positions<1>(out.sizes, {out.strides}, state);
  s.together = s.together && takes_four(native<T>(out));
  launch(ctx, op, Draw<native_t<T>, Value>{native<T>(out), value}, s);
}

std::uint64_t threshold(double p) { return static_cast<std::uint64_t>(std::llround(p * 0x1p32)); }

}  // namespace

void uniform(const Context& ctx, View out, double low, double high, const RandomState& state) {
  visit_floating(out.dtype, "uniform", [&]<class T>() {
    draw_into<T>(ctx, "uniform", out, state, Uniform{low, high - low});
  });
}

void normal(const Context& ctx, View out, double mean, double std, const RandomState& state) {
  visit_floating(out.dtype, "normal", [&]<class T>() { draw_into<T>(ctx, "normal", out, state, Normal{mean, std}); });
}

void bernoulli(const Context& ctx, View out, double p, const RandomState& state) {
  const Bernoulli value{threshold(p)};
  visit_any(out.dtype, "bernoulli", [&]<class T>() { draw_into<T>(ctx, "bernoulli", out, state, value); });
}

void dropout(const Context& ctx, View y, View mask, ConstView x, double p, const RandomState& state) {
  bool* kept = mask.defined() ? native<bool>(mask) : nullptr;
  const std::uint64_t limit = threshold(1 - p);
  if (limit == 0) {
    fill(ctx, y, 0.0);
    if (mask.defined()) fill(ctx, mask, 0.0);
    return;
  }
  auto s = positions<3>(y.sizes, {y.strides, x.strides, mask.defined() ? mask.strides : y.strides}, state);
  visit_floating(y.dtype, "dropout", [&]<class T>() {
    using N = native_t<T>;
    using C = compute_t<N>;
    constexpr int V = kVector<N>;
    const Dropout<N> d{native<T>(y), kept, native<T>(x), limit, static_cast<C>(1.0 / (1.0 - p))};
    if constexpr (V % 4 == 0) {
      if (s.together && aligned_to(d.y, 16) && aligned_to(d.x, 16) && aligned_to(kept, V) && s.length > 0) {
        const std::int64_t packs = s.length / V;
        const auto blocks = static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(packs * V, kThreads * kOwn)));
        RoundKeys keys;
        for (int r = 0; r < RoundKeys::kRounds; ++r)
          keys.v[r] = static_cast<std::uint32_t>(s.seed) + static_cast<std::uint32_t>(r) * kFirstStep;
        dropout_packs<<<blocks, kThreads, 0, stream_of(ctx)>>>(
            d, packs, static_cast<int>(s.length % V), keys, static_cast<std::uint32_t>(s.seed >> 32), s.offset, s.base,
            past_cache(s.length * static_cast<std::int64_t>(sizeof(N))));
        return check_launch("dropout");
      }
    }
    s.together = s.together && takes_four(d.y) && takes_four(d.x) && takes_four(kept);
    launch(ctx, "dropout", d, s);
  });
}

}  // namespace apex::kernels::cuda
