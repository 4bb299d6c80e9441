// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../matmul_impl.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "../copy_impl.hpp"
#include "../elementwise_impl.hpp"
#include "../reduce_impl.hpp"
#include "apex/kernels/backend.hpp"
#include "handles.hpp"

// Products go to cuBLASLt, which thinks in columns: a row-major c = a b is handed over as c^T = b^T a^T. Algorithms
// that add up parts of a sum in the order they happen to finish, or round parts to 16 bits, are ruled out.

namespace apex::kernels::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

/// Matrices in memory: element (i, j) of matrix s at s * batch + i * row + j * col.
struct Matrix {
  const void* data = nullptr;
  std::int64_t rows = 0, cols = 0, row = 0, col = 0, batch = 0;
};

Matrix matrix_of(const ConstView& v) {
  Matrix m{v.data, v.size(-2), v.size(-1), v.stride(-2), v.stride(-1), 0};
  if (v.rank() == 3 && v.size(0) > 1) m.batch = v.stride(0);
  return m;
}

Matrix transposed(const Matrix& m) { return {m.data, m.cols, m.rows, m.col, m.row, m.batch}; }

/// As the library wants it: rows, or columns, of stride 1 that do not overlap.
struct Operand {
  bool fits = false, transposed = false;
  std::int64_t leading = 1;
};

Operand operand_of(const Matrix& m) {
  const auto plain = [](std::int64_t rows, std::int64_t cols, std::int64_t row, std::int64_t col) {
    return (cols == 1 || col == 1) && (rows == 1 || row >= cols);
  };
  if (plain(m.rows, m.cols, m.row, m.col)) return {true, false, m.rows == 1 ? m.cols : m.row};
  if (plain(m.cols, m.rows, m.col, m.row)) return {true, true, m.cols == 1 ? m.rows : m.col};
  return {};
}

/// The largest power of two, up to 256, that all matrices' addresses are multiples of.
std::int64_t alignment_of(const Matrix& m, std::size_t element) {
  auto bits = reinterpret_cast<std::uintptr_t>(m.data) | 256u;
  bits |= static_cast<std::uintptr_t>(m.batch) * element;
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: throw_unsupported("matmul", dtype);
  }
}

template <class T, auto Destroy>
struct Destroyer {
  void operator()(T descriptor) const { Destroy(descriptor); }
};
template <class T, auto Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<T, Destroy>>;
using MatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class V>
void set(const MatmulDesc& d, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  APEX_CHECK(cublasLtMatmulDescSetAttribute(d.get(), attribute, &value, sizeof value));
}
template <class V>
void set(const Layout& d, cublasLtMatrixLayoutAttribute_t attribute, const V& value) {
  APEX_CHECK(cublasLtMatrixLayoutSetAttribute(d.get(), attribute, &value, sizeof value));
}
template <class V>
void set(const Preference& d, cublasLtMatmulPreferenceAttributes_t attribute, const V& value) {
  APEX_CHECK(cublasLtMatmulPreferenceSetAttribute(d.get(), attribute, &value, sizeof value));
}

Layout make_layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t leading, std::int64_t count,
                   std::int64_t batch) {
  cublasLtMatrixLayout_t made = nullptr;
  APEX_CHECK(cublasLtMatrixLayoutCreate(&made, data_type(dtype), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(cols), leading));
  Layout layout(made);
  if (count > 1) {
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch);
  }
  return layout;
}

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspace = 0;
};

/// Everything the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 20>;

std::optional<Algorithm> cached(const Key& key, std::optional<Algorithm> (*find)(const void*), const void* problem) {
  static auto& guard = *new std::mutex;
  static auto& known = *new std::map<Key, std::optional<Algorithm>>;
  {
    const std::lock_guard lock(guard);
    const auto at = known.find(key);
    if (at != known.end()) return at->second;
  }
  const auto found = find(problem);
  const std::lock_guard lock(guard);
  return known.emplace(key, found).first->second;
}

/// One call of the library, in its terms: d (m x n, columns) = alpha op(a) op(b) + beta d.
struct Problem {
  cublasLtHandle_t handle;
  MatmulDesc desc;
  Layout a, b, d;
  std::int64_t align_a, align_b, align_d;
};

std::optional<Algorithm> find_algorithm(const void* problem) {
  const auto& p = *static_cast<const Problem*>(problem);
  const OutsideCapture outside;
  cublasLtMatmulPreference_t made = nullptr;
  APEX_CHECK(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::min(kWorkspace, workspace_limit()));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(p.align_a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(p.align_b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(p.align_d));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(p.align_d));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(p.handle, p.desc.get(), p.a.get(), p.b.get(), p.d.get(), p.d.get(),
                                                     preference.get(), 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return std::nullopt;
  APEX_CHECK(status);
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return Algorithm{result.algo, result.workspaceSize};
}

/// c = alpha a b + beta c, with a bias for every column of c if given.
struct Product {
  DType dtype;
  std::int64_t batches = 1;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;
};

/// False where the library has nothing for these operands as they lie.
bool try_product(const Context& ctx, const Product& how, Matrix c, Matrix a, Matrix b) {
  if (operand_of(c).transposed) {
    if (how.bias != nullptr) return false;
    std::swap(a, b);
    for (auto* m : {&a, &b, &c}) *m = transposed(*m);
  }
  const Operand oa = operand_of(a), ob = operand_of(b), oc = operand_of(c);
  if (!oa.fits || !ob.fits || !oc.fits) return false;
  const std::size_t element = size_of(how.dtype);
  const bool wide = how.dtype == DType::f64, tf32 = how.dtype == DType::f32 && allow_tf32();
  if (how.bias != nullptr && reinterpret_cast<std::uintptr_t>(how.bias) % 16 != 0) return false;

  Problem p{.handle = cublaslt_handle(ctx),
            .align_a = alignment_of(b, element),
            .align_b = alignment_of(a, element),
            .align_d = alignment_of(c, element)};
  const auto compute = wide ? CUBLAS_COMPUTE_64F : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t made = nullptr;
  APEX_CHECK(cublasLtMatmulDescCreate(&made, compute, wide ? CUDA_R_64F : CUDA_R_32F));
  p.desc.reset(made);
  const auto op = [](const Operand& o) { return o.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, op(ob));
  set(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, op(oa));
  if (how.bias != nullptr) {
    set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, how.bias);
  }
  // Rows of ours are columns of theirs.
  const auto layout = [&](const Matrix& m, const Operand& o) {
    const std::int64_t rows = o.transposed ? m.rows : m.cols, cols = o.transposed ? m.cols : m.rows;
    return make_layout(how.dtype, rows, cols, o.leading, how.batches, m.batch);
  };
  p.a = layout(b, ob);
  p.b = layout(a, oa);
  p.d = layout(c, oc);

  const Key key{ctx.device.index,
                static_cast<std::int64_t>(how.dtype),
                tf32,
                how.bias != nullptr,
                how.batches,
                c.rows,
                c.cols,
                a.cols,
                oa.transposed,
                ob.transposed,
                oa.leading,
                ob.leading,
                oc.leading,
                a.batch,
                b.batch,
                c.batch,
                p.align_a,
                p.align_b,
                p.align_d,
                how.beta != 0};
  const auto algorithm = cached(key, find_algorithm, &p);
  if (!algorithm) return false;
  const Workspace workspace = ctx.workspace(algorithm->workspace);
  const float alpha32 = static_cast<float>(how.alpha), beta32 = static_cast<float>(how.beta);
  const void* alpha = wide ? static_cast<const void*>(&how.alpha) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&how.beta) : &beta32;
  APEX_CHECK(cublasLtMatmul(p.handle, p.desc.get(), alpha, b.data, p.a.get(), a.data, p.b.get(), beta, c.data,
                            p.d.get(), const_cast<void*>(c.data), p.d.get(), &algorithm->algo, workspace.data(),
                            algorithm->workspace, apex::cuda::stream_of(ctx)));
  return true;
}

/// A row-major copy in scratch whose rows start at multiples of 16 bytes.
struct Scratch {
  Workspace memory;
  View view;
};

Scratch laid_out(const Context& ctx, const ConstView& like) {
  const auto element = static_cast<std::int64_t>(size_of(like.dtype)), rows = like.size(-2), cols = like.size(-1);
  const std::int64_t step = 16 / element, leading = (cols + step - 1) / step * step;
  const std::int64_t batches = like.rank() == 3 ? like.size(0) : 1;
  Scratch s{ctx.workspace(static_cast<std::size_t>(batches * rows * leading * element)), {}};
  static_cast<BasicView<void*>&>(s.view) = {s.memory.data(), like.dtype, like.device, like.sizes, like.strides, true};
  s.view.strides[like.rank() - 1] = 1;
  s.view.strides[like.rank() - 2] = leading;
  if (like.rank() == 3) s.view.strides[0] = rows * leading;
  return s;
}

/// One matrix for all the batch.
ConstView without_repeats(ConstView v) {
  if (v.rank() == 3 && v.stride(0) == 0) v.sizes[0] = 1;
  return v;
}

void product(const Context& ctx, const Product& how, const View& c, ConstView a, ConstView b) {
  a = without_repeats(a);
  b = without_repeats(b);
  if (try_product(ctx, how, matrix_of(c), matrix_of(a), matrix_of(b))) return;
  const auto fitting = [&](const ConstView& v) {
    return operand_of(matrix_of(v)).fits && alignment_of(matrix_of(v), size_of(v.dtype)) >= 16;
  };
  Scratch at, bt, ct;
  View out = c;
  if (!fitting(a)) {
    at = laid_out(ctx, a);
    copy(ctx, at.view, a);
    a = at.view;
  }
  if (!fitting(b)) {
    bt = laid_out(ctx, b);
    copy(ctx, bt.view, b);
    b = bt.view;
  }
  if (!fitting(c)) {
    ct = laid_out(ctx, c);
    if (how.beta != 0) copy(ctx, ct.view, c);
    out = ct.view;
  }
  if (!try_product(ctx, how, matrix_of(out), matrix_of(a), matrix_of(b)))
    fail(Kind::unsupported, concat("matmul: cuBLASLt has no algorithm for ", a.sizes, " times ", b.sizes, " in ",
                                   how.dtype, how.bias != nullptr ? " with bias" : ""));
  if (out.data != c.data) copy(ctx, c, out);
}

ConstView transposed(ConstView v) {
  std::swap(v.sizes[0], v.sizes[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

}  // namespace

void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options) {
  if (c.numel() == 0) return;
  if (a.size(-1) == 0) {
    if (options.beta == 0) return fill(ctx, c, 0.0);
    return scale_shift(ctx, c, c, options.beta, 0.0);
  }
  const std::int64_t batches = c.rank() == 3 ? c.size(0) : 1;
  product(ctx, {.dtype = c.dtype, .batches = batches, .alpha = options.alpha, .beta = options.beta}, c, a, b);
}

void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias) {
  if (y.numel() == 0) return;
  if (!bias.defined()) return matmul(ctx, y, x, transposed(w), {});
  const ConstView wt = transposed(w);
  Product how{.dtype = y.dtype};
  if (x.size(1) > 0 && (bias.size(0) == 1 || bias.stride(0) == 1)) {
    how.bias = bias.data;
    if (try_product(ctx, how, matrix_of(y), matrix_of(x), matrix_of(wt))) return;
    how.bias = nullptr;
  }
  // Without an epilogue for it, the bias is what the product is added to: it is rounded once either way.
  ConstView rows = bias;
  rows.sizes = y.sizes;
  rows.strides = {0, bias.stride(0)};
  copy(ctx, y, rows);
  if (x.size(1) == 0) return;
  how.beta = 1;
  product(ctx, how, y, x, wt);
}

void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w) { matmul(ctx, dx, dy, w, {}); }

void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x) {
  if (dw.defined()) matmul(ctx, dw, transposed(dy), x, {});
  if (!db.defined()) return;
  View row = db;
  row.sizes = {1, db.size(0)};
  row.strides = {0, db.stride(0)};
  cuda::reduce(ctx, row, dy, ReduceOp::sum);
}

}  // namespace apex::kernels::cuda
