// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/view.hpp"
#include "launch.cuh"

// What the host side of batch normalisation and its passes over a tensor share.

namespace apex::kernels::cuda::batch_norm {

constexpr int kThreads = 256;

/// A [C] view in the tensor's type or in the accumulation type.
struct Vector {
  const void* data = nullptr;  // null: not given
  bool wide = true;            // in the accumulation type

  Vector() = default;
  explicit Vector(const ConstView& v)
      : data(v.defined() ? v.data : nullptr), wide(v.dtype == DType::f32 || v.dtype == DType::f64) {}
};

/// What is done to each channel: (x - mean) * (weight / std) + bias.
struct Affine {
  Vector mean, spread, weight, bias;
  bool spread_is_variance = false;  // else 1 / std
  double eps = 0;
};

/// Where a gradient passes; two_terms: from_output, and the gradient is the rounded sum of two tensors.
enum class Mask { none, from_output, from_input, two_terms };

struct Gradient {
  Mask mask = Mask::none;
  const void *dy = nullptr, *y = nullptr, *x = nullptr;
  const void* more_dy = nullptr;  // of two_terms
};

/// How blocks share a tensor. Channels-last: an item is a row of channels, a block is `columns` vectors wide and
/// `block_rows` items high. Row-major: a block belongs to one channel and an item is one vector of its planes. Blocks
/// of one tile of channels form `groups`, which take turns; the number of groups depends on sizes only, and with it the
/// order of every sum.
struct Walk {
  std::int64_t c = 0, items = 0, line = 1, groups = 1;
  unsigned tiles = 1;
  int columns = 1, vector = 1;
  bool rows = true;
  bool past_cache = false;  // results are

  __host__ __device__ std::int64_t block_rows() const { return kThreads / columns; }
  __host__ __device__ std::int64_t step() const { return groups * block_rows(); }
  __host__ __device__ std::int64_t values_per_item() const { return rows ? 1 : vector; }
  /// Values per channel that one group visits.
  __host__ __device__ std::int64_t values_of_group(std::int64_t group) const {
    const std::int64_t rest = items % step() - group * block_rows();
    const std::int64_t more = rest < 0 ? 0 : rest < block_rows() ? rest : block_rows();
    return (items / step() * block_rows() + more) * values_per_item();
  }
  unsigned blocks() const { return static_cast<unsigned>(tiles * groups); }
};

/// The launches for one element type; x, y, dy, dx, ... are of type T and, for a vector wider than 1, aligned to 16
/// bytes.
template <class T>
struct Passes {
  static void statistics(cudaStream_t stream, const Walk& w, double2* partial, const void* x);
  static void apply(cudaStream_t stream, const Walk& w, void* y, const void* x, const void* residual,
                    const Affine& affine, bool relu);
  static void backward_sums(cudaStream_t stream, const Walk& w, double2* partial, void* dresidual, void* constant_dx,
                            const Gradient& g, const Affine& affine);
  static void backward_apply(cudaStream_t stream, const Walk& w, void* dx, const Gradient& g, const Affine& affine,
                             const void* sum_dy, const void* sum_dy_xmu, double n);
};
extern template struct Passes<double>;
extern template struct Passes<float>;
extern template struct Passes<float16>;
extern template struct Passes<bfloat16>;

}  // namespace apex::kernels::cuda::batch_norm
