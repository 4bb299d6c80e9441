// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../copy_impl.hpp"
#include "../indexing_impl.hpp"
#include "index_access.cuh"
#include "sort.cuh"

// No atomics: the elements that point at an output are added in the order of their places, the same bits on every run.
// Few indices in a line are looked through by every output of it. Rows of moderate length are summed in shared memory
// by a warp each, in steps of 32 elements. Other indices are sorted first (one that was broadcast only once), and each
// output is summed by a thread, which finds its elements between two bounds.

namespace apex::kernels::cuda {
namespace {

constexpr std::int64_t kFew = 16;

struct Scatter {
  Index<5> space;  // operands out, base, src without `dim`, index without `dim` (or line of sorted indices), place
  std::int64_t count, src_stride, index_stride;
  std::int64_t ignore;
  bool ignores;
};

/// What sums are formed in.
template <class N>
using sum_t =
    std::conditional_t<std::is_integral_v<N>, std::make_unsigned<compute_t<N>>, std::type_identity<compute_t<N>>>;

template <class N, class A>
__device__ __forceinline__ A start_of(const N* base, std::int64_t at) {
  return base == nullptr ? A(0) : static_cast<A>(load(base[at]));
}

template <class N>
__global__ void __launch_bounds__(kMapThreads)
    few_kernel(N* out, const N* base, const N* src, const Indices indices, const Scatter s) {
  using A = typename sum_t<N>::type;
  const std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (p >= s.space.numel) return;
  const auto at = s.space.at(p);
  A sum = start_of<N, A>(base, at.v[1]);
  for (std::int64_t i = 0; i < s.count; ++i) {
    const std::int64_t to = indices.at(at.v[3] + i * s.index_stride);
    if (to == at.v[4] && !(s.ignores && to == s.ignore)) sum += static_cast<A>(load(src[at.v[2] + i * s.src_stride]));
  }
  out[at.v[0]] = store<N>(sum);
}

constexpr std::int64_t kMostRowBytes = 32 << 10;  // of sums in shared memory
constexpr int kSteps = 8;                         // of a warp whose elements are on their way together

struct Rows {
  Index<4> lines;  // operands out, base, src, index, each with the elements of a line side by side
  std::int64_t base_stride;
  int size, count;
  std::int64_t ignore;
  bool ignores;
};

/// A row for each warp, which takes its elements in order, 32 at a time. Those of one step that meet in one place are
/// added one after the other.
template <class N, class I>
__global__ void __launch_bounds__(32) rows_kernel(N* out, const N* base, const N* src, const I* indices, const Rows s) {
  using A = typename sum_t<N>::type;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kRound = 32 * kSteps;
  extern __shared__ uint4 shared_sums[];
  A* sums = reinterpret_cast<A*>(shared_sums);
  const int lane = static_cast<int>(threadIdx.x);
  const auto at = s.lines.at(blockIdx.x);
  for (int k = lane; k < s.size; k += 32) sums[k] = start_of<N, A>(base, at.v[1] + k * s.base_stride);
  I place[2][kSteps];
  N value[2][kSteps];
  // Beyond the end the last element, so that nothing is decided between the loads.
  const auto read = [&](int half, int first) {
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int i = min(first + 32 * u + lane, s.count - 1);
      place[half][u] = indices[at.v[3] + i];
      value[half][u] = src[at.v[2] + i];
    }
  };
  const auto add = [&](int half, int first) {
    int to[kSteps];
    int turn[kSteps];  // how many of the same place come before; negative: nowhere
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const I k = place[half][u];
      const bool counts =
          first + 32 * u + lane < s.count && k >= 0 && k < static_cast<I>(s.size) && !(s.ignores && k == s.ignore);
      to[u] = counts ? static_cast<int>(k) : -1;
      const unsigned same = __match_any_sync(kAll, to[u]);
      turn[u] = counts ? __popc(same & ((1u << lane) - 1)) : -1;
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      __syncwarp();
      if (turn[u] == 0) sums[to[u]] += static_cast<A>(load(value[half][u]));
      for (int t = 1; __any_sync(kAll, turn[u] >= t); ++t) {
        __syncwarp();
        if (turn[u] == t) sums[to[u]] += static_cast<A>(load(value[half][u]));
      }
    }
  };
  read(0, 0);
  for (int first = 0; first < s.count; first += 2 * kRound) {
    read(1, first + kRound);  // on their way while the others are added
    add(0, first);
    read(0, first + 2 * kRound);
    add(1, first + kRound);
  }
  __syncwarp();
  for (int k = lane; k < s.size; k += 32) out[at.v[0] + k] = store<N>(sums[k]);
}

/// The indices of each line as keys; wrong and ignored ones come last.
__global__ void __launch_bounds__(kMapThreads)
    keys_kernel(std::uint32_t* keys, const Indices indices, const Index<1> lines, std::int64_t count,
                std::int64_t stride, std::int64_t size, bool ignores, std::int64_t ignore) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (at >= lines.numel * count) return;
  const std::int64_t line = at / count, place = at - line * count;
  const std::int64_t to = indices.at(lines.at(line).v[0] + place * stride);
  keys[at] = to >= 0 && to < size && !(ignores && to == ignore) ? static_cast<std::uint32_t>(to) : ~0u;
}

/// bounds[line][k] = number of keys of the line below k, for k from 0 to size.
__global__ void __launch_bounds__(kMapThreads)
    bounds_kernel(std::uint32_t* bounds, const std::uint32_t* keys, std::int64_t lines, std::int64_t count,
                  std::int64_t size) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (at >= lines * (size + 1)) return;
  const std::int64_t line = at / (size + 1), k = at - line * (size + 1);
  const std::uint32_t* sorted = keys + line * count;
  std::int64_t low = 0, n = count;
  while (n > 0) {
    const std::int64_t half = n / 2;
    if (sorted[low + half] < k) {
      low += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  bounds[at] = static_cast<std::uint32_t>(low);
}

/// Adds the next kAhead elements as long as there are so many: they are on their way together.
template <int kAhead, int V, class N, class A>
__device__ __forceinline__ void add_elements(A (&sum)[V], const N* src, std::int64_t stride,
                                             const std::uint32_t* places, std::uint32_t& i, std::uint32_t end) {
  for (; i + kAhead <= end; i += kAhead) {
    Pack<N, V> read[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) read[u] = *reinterpret_cast<const Pack<N, V>*>(src + places[i + u] * stride);
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += static_cast<A>(load(read[u].v[v]));
  }
}

/// `s.space` counts packs of V outputs, which an index points at together.
template <int V, class N>
__global__ void __launch_bounds__(kMapThreads)
    sum_kernel(N* out, const N* base, const N* src, const std::uint32_t* places, const std::uint32_t* bounds,
               std::int64_t size, const Scatter s) {
  using A = typename sum_t<N>::type;
  const std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (p >= s.space.numel) return;
  const auto at = s.space.at(p);
  const std::int64_t line = at.v[3];
  const std::uint32_t* bound = bounds + line * (size + 1) + at.v[4];
  const std::uint32_t* own = places + line * s.count;
  const std::uint32_t end = bound[1];
  std::uint32_t i = bound[0];
  A sum[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sum[v] = start_of<N, A>(base, at.v[1] + v);
  add_elements<8>(sum, src + at.v[2], s.src_stride, own, i, end);
  add_elements<1>(sum, src + at.v[2], s.src_stride, own, i, end);
  Pack<N, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.v[v] = store<N>(sum[v]);
  *reinterpret_cast<Pack<N, V>*>(out + at.v[0]) = result;
}

unsigned blocks_of(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kMapThreads)); }

template <class F>
void visit_summable(DType dtype, F&& f) {
  if (dtype == DType::i64) return f.template operator()<std::int64_t>();
  if (dtype == DType::i32) return f.template operator()<std::int32_t>();
  visit_floating(dtype, "scatter_add", f);
}

/// Strides that number the lines of the distinct indices, row-major, 0 where the index is broadcast; `lines` gets how
/// many there are.
Dims line_strides(const ConstView& once, int dim, std::int64_t& lines) {
  Dims strides = Dims::filled(once.rank(), 0);
  lines = 1;
  for (int d = once.rank() - 1; d >= 0; --d) {
    if (d == dim) continue;
    if (once.sizes[d] > 1) strides[d] = lines;
    lines *= once.sizes[d];
  }
  return strides;
}

}  // namespace

void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options) {
  const std::int64_t size = out.sizes[dim], count = src.sizes[dim];
  check_indices(ctx, {"scatter_add", "index", size, options.ignore_index}, index);
  if (out.numel() == 0) return;
  Dims touched = src.sizes;  // outputs that an index may point at
  touched[dim] = size;
  const bool empty = src.numel() == 0;
  if (empty || touched != out.sizes) {
    if (base.defined())
      copy(ctx, out, base);
    else
      fill(ctx, out, 0.0);
    if (empty) return;
  }
  if (size >= std::int64_t{1} << 32 || count >= std::int64_t{1} << 31)
    fail(Kind::unsupported,
         concat("scatter_add: ", count, " indices into ", size, " places; on CUDA there may be 2^31 and 2^32 at most"));
  const Dims& base_strides = base.defined() ? base.strides : out.strides;
  const Dims src_strides = without(src.strides, dim);
  Dims place = Dims::filled(out.rank(), 0);
  place[dim] = 1;
  Scatter s{{},
            count,
            src.strides[dim],
            index.strides[dim],
            options.ignore_index.value_or(0),
            options.ignore_index.has_value()};
  const auto stream = stream_of(ctx);
  if (count <= kFew) {
    s.space = make_index<5>(touched, {out.strides, base_strides, src_strides, without(index.strides, dim), place});
    visit_summable(out.dtype, [&]<class T>() {
      few_kernel<<<blocks_of(s.space.numel), kMapThreads, 0, stream>>>(
          native<T>(out), base.defined() ? native<T>(base) : nullptr, native<T>(src), Indices(index), s);
    });
    return check_launch("scatter_add");
  }
  Dims row_sizes = touched;
  row_sizes[dim] = 1;
  const Rows rows{make_index<4>(row_sizes, {out.strides, base_strides, src.strides, index.strides}),
                  base_strides[dim],
                  static_cast<int>(std::min<std::int64_t>(size, 1 << 30)),
                  static_cast<int>(std::min<std::int64_t>(count, 1 << 30)),
                  s.ignore,
                  s.ignores};
  const auto sum_bytes = size * static_cast<std::int64_t>(std::max<std::size_t>(4, size_of(out.dtype)));
  // Few lines would leave the device idle, and warps wait for their own sums.
  if (out.strides[dim] == 1 && src.strides[dim] == 1 && index.strides[dim] == 1 && sum_bytes <= kMostRowBytes &&
      rows.lines.numel < std::int64_t{1} << 31 && (rows.lines.numel >= 64 || count <= 2048) && count < 1 << 30) {
    visit_summable(out.dtype, [&]<class T>() {
      const auto launch = [&]<class I>() {
        rows_kernel<<<static_cast<unsigned>(rows.lines.numel), 32, static_cast<std::size_t>(sum_bytes), stream>>>(
            native<T>(out), base.defined() ? native<T>(base) : nullptr, native<T>(src), native<I>(index), rows);
      };
      index.dtype == DType::i64 ? launch.template operator()<std::int64_t>()
                                : launch.template operator()<std::int32_t>();
    });
    return check_launch("scatter_add");
  }
  ConstView once = distinct(index);
  once.sizes[dim] = count;
  std::int64_t lines = 1;
  s.space = make_index<5>(touched, {out.strides, base_strides, src_strides, line_strides(once, dim, lines), place});
  Dims line_sizes = once.sizes;
  line_sizes[dim] = 1;
  const auto of_lines = make_index<1>(line_sizes, {once.strides}, Order::logical);
  const Workspace memory = ctx.workspace(sort_bytes(lines, count, sizeof(std::uint32_t)));
  const Workspace bounds = ctx.workspace(static_cast<std::size_t>(lines * (size + 1)) * sizeof(std::uint32_t));
  keys_kernel<<<blocks_of(lines * count), kMapThreads, 0, stream>>>(
      memory.as<std::uint32_t>(), Indices(once), of_lines, count, once.strides[dim], size, s.ignores, s.ignore);
  const auto sorted = sort_lines<std::uint32_t>(ctx, memory.data(), lines, count);
  bounds_kernel<<<blocks_of(lines * (size + 1)), kMapThreads, 0, stream>>>(bounds.as<std::uint32_t>(), sorted.keys,
                                                                           lines, count, size);
  visit_summable(out.dtype, [&]<class T>() {
    using N = native_t<T>;
    constexpr int V = kVector<N>;
    N* to = native<T>(out);
    const N *start = base.defined() ? native<T>(base) : nullptr, *from = native<T>(src);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks_of(s.space.numel), kMapThreads, 0, stream>>>(to, start, from, sorted.places,
                                                                   bounds.as<std::uint32_t>(), size, s);
    };
    // Packs where an index is for a whole row: the rows of an embedding.
    const auto& first = s.space.stride;
    const bool rows =
        first[0][0] == 1 && first[1][0] == 1 && first[2][0] == 1 && first[3][0] == 0 && first[4][0] == 0 &&
        s.space.size[0] % V == 0 && s.src_stride % V == 0 &&
        packs<5>(s.space, V, {to, start, from, nullptr, nullptr}, {sizeof(N), sizeof(N), sizeof(N), 1, 1});
    if (rows) {
      s.space = packed(s.space, V);
      launch(sum_kernel<V, N>);
    } else {
      launch(sum_kernel<1, N>);
    }
  });
  check_launch("scatter_add");
}

}  // namespace apex::kernels::cuda
