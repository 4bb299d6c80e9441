// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>

#include "apex/core/view.hpp"
#include "launch.cuh"

// One launch over hundreds of tensors. Addresses and sizes travel in the kernel's parameters (up to 32,764 bytes), so
// there is no table on the device to fill and a captured graph keeps its own copy. A block takes one chunk of one
// tensor and finds it by bisection; the hardware spreads the chunks.

namespace apex::kernels::cuda::multi_tensor {

constexpr int kThreads = 256;
constexpr int kWidth = 4;   // elements of one access
constexpr int kUnroll = 4;  // accesses of a thread that are on their way together
constexpr std::int64_t kChunk = kThreads * kWidth * kUnroll;

template <int kLists>
struct Table {
  static constexpr int kCapacity = 30000 / (kLists * 8 + 8 + 4 + 1);

  void* data[kLists][kCapacity];
  std::int64_t size[kCapacity];
  unsigned start[kCapacity + 1];            // first chunk of each tensor; empty tensors have none
  unsigned char vector[kCapacity / 8 + 1];  // a bit each: whether all lists are aligned for whole accesses
  unsigned char tag[kCapacity];             // what else an op says of a tensor
  int count;

  __device__ __forceinline__ int find(unsigned chunk) const {
    int low = 0, high = count;  // start[low] <= chunk < start[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (start[middle] <= chunk)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  __device__ __forceinline__ bool is_vector(int i) const { return (vector[i / 8] >> (i % 8)) & 1; }
};

/// Fills tables and hands each to launch(table, index of its first tensor) when it is full, and the last one.
template <int kLists, class Launch>
class Filler {
 public:
  explicit Filler(std::int64_t chunk, Launch launch) : chunk_(chunk), launch_(launch) { clear(0); }

  /// An element size of 0: not an address but a number, in the same bits.
  void add(const void* const (&data)[kLists], const std::size_t (&element)[kLists], std::int64_t size, unsigned tag) {
    const std::int64_t chunks = ceil_div(size, chunk_);
    if (table_.count == Table<kLists>::kCapacity || table_.start[table_.count] + chunks > kMostChunks) flush();
    const int i = table_.count++;
    bool aligned = true;
    for (int k = 0; k < kLists; ++k) {
      table_.data[k][i] = const_cast<void*>(data[k]);
      if (data[k] != nullptr && element[k] != 0) aligned = aligned && aligned_to(data[k], element[k] * kWidth);
    }
    table_.size[i] = size;
    table_.tag[i] = static_cast<unsigned char>(tag);
    if (aligned) table_.vector[i / 8] = static_cast<unsigned char>(table_.vector[i / 8] | (1u << (i % 8)));
    table_.start[i + 1] = table_.start[i] + static_cast<unsigned>(chunks);
  }
  void flush() {
    if (table_.count > 0) launch_(table_, first_);
    clear(first_ + table_.count);
  }

 private:
  static constexpr std::int64_t kMostChunks = 0x7fffffff;

  void clear(int first) {
    first_ = first;
    table_.count = 0;
    table_.start[0] = 0;
    for (auto& bits : table_.vector) bits = 0;
  }

  std::int64_t chunk_;
  Launch launch_;
  int first_ = 0;
  Table<kLists> table_;
};

template <int kLists, class Launch>
Filler<kLists, Launch> make_filler(std::int64_t chunk, Launch launch) {
  return Filler<kLists, Launch>(chunk, launch);
}

template <int kElements, class N>
__device__ __forceinline__ Pack<N, kElements> fetch(const void* from, std::int64_t at) {
  return *reinterpret_cast<const Pack<N, kElements>*>(static_cast<const N*>(from) + at);
}
template <int kElements, class N>
__device__ __forceinline__ void put(void* to, std::int64_t at, const Pack<N, kElements>& values) {
  *reinterpret_cast<Pack<N, kElements>*>(static_cast<N*>(to) + at) = values;
}

/// Runs an op over one chunk. An op has
///   bool begin(table, tensor)            reads what it needs of the device; false: nothing to do
///   Item<E>                              registers of E elements
///   fetch<E>(Item<E>&, at), use<E>(Item<E>&, at)
///   finish()                             after the last element of the thread
/// and may have kAtOnce and kBlocks: accesses that are on their way together (a divisor of kUnroll), and the blocks of
/// a multiprocessor that registers are to be left for.
template <class Op>
constexpr int at_once() {
  if constexpr (requires { Op::kAtOnce; })
    return Op::kAtOnce;
  else
    return kUnroll;
}
template <class Op>
constexpr int blocks_at_once() {
  if constexpr (requires { Op::kBlocks; })
    return Op::kBlocks;
  else
    return 2;
}

template <int kLists, class Op>
__global__ void __launch_bounds__(kThreads, blocks_at_once<Op>())
    each(const __grid_constant__ Table<kLists> table, const Op given) {
  const int tensor = table.find(blockIdx.x);
  Op op = given;
  if (!op.begin(table, tensor)) return;
  std::int64_t at = std::int64_t{blockIdx.x - table.start[tensor]} * kChunk;
  const std::int64_t size = table.size[tensor], end = at + kChunk < size ? at + kChunk : size;
  if (table.is_vector(tensor)) {
    std::int64_t offset = at + std::int64_t{threadIdx.x} * kWidth;
    if (end - at == kChunk) {
      constexpr int kAtOnce = at_once<Op>();
#pragma unroll 1
      for (int round = 0; round < kUnroll / kAtOnce; ++round, offset += kAtOnce * kThreads * kWidth) {
        typename Op::template Item<kWidth> items[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) op.template fetch<kWidth>(items[u], offset + u * (kThreads * kWidth));
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) op.template use<kWidth>(items[u], offset + u * (kThreads * kWidth));
      }
      op.finish();
      return;
    }
    for (std::int64_t i = offset; i + kWidth <= end; i += kThreads * kWidth) {
      typename Op::template Item<kWidth> item;
      op.template fetch<kWidth>(item, i);
      op.template use<kWidth>(item, i);
    }
    at += (end - at) / kWidth * kWidth;
  }
#pragma unroll 4
  for (std::int64_t i = at + threadIdx.x; i < end; i += kThreads) {
    typename Op::template Item<1> item;
    op.template fetch<1>(item, i);
    op.template use<1>(item, i);
  }
  op.finish();
}

template <int kLists, class Op>
void launch_each(const Context& ctx, const Table<kLists>& table, const Op& op, const char* name) {
  static_assert(sizeof(Table<kLists>) + sizeof(Op) < 32000);
  const unsigned blocks = table.start[table.count];
  if (blocks == 0) return;
  each<kLists, Op><<<blocks, kThreads, 0, stream_of(ctx)>>>(table, op);
  check_launch(name);
}

template <class A>
__device__ __forceinline__ bool is_bad(A value) {
  return !isfinite(value);
}

inline std::int32_t* flag_of(const View& flag) { return flag.defined() ? flag.as<std::int32_t>() : nullptr; }

/// Calls f with the native type of a floating dtype.
template <class F>
void visit_native(DType dtype, const char* op, F&& f) {
  visit_floating(dtype, op, [&]<class T>() { f.template operator()<native_t<T>>(); });
}

}  // namespace apex::kernels::cuda::multi_tensor
