// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <exception>
#include <mutex>

#include "../copy_impl.hpp"
#include "../matmul_impl.hpp"
#include "../reduce_impl.hpp"
#include "gemm.hpp"
#include "onednn.hpp"
#include "widened.hpp"

namespace apex::kernels::cpu {
namespace {

/// A matrix in memory: element (i, j) at i * row + j * col.
template <class T>
struct Matrix {
  T* data;
  std::int64_t rows, cols, row, col;

  Matrix transposed() const { return {data, cols, rows, col, row}; }
};

template <class T, class V>
Matrix<T> matrix_of(const V& v) {
  using Plain = std::remove_const_t<T>;
  return {v.template as<Plain>(), v.size(-2), v.size(-1), v.stride(-2), v.stride(-1)};
}

template <class T>
void own_product(const Context& ctx, const Matrix<T>& c, const Matrix<const T>& a, const Matrix<const T>& b, T alpha,
                 T beta) {
  using G = Gemm<T>;
  G::run(
      ctx, c.rows, c.cols, a.cols,
      [&](T* panel, std::int64_t i, std::int64_t rows, std::int64_t k, std::int64_t count) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* from = a.data + (i + r) * a.row + k * a.col;
          for (std::int64_t kk = 0; kk < count; ++kk) panel[kk * G::kRows + r] = from[kk * a.col];
        }
      },
      [&](T* panel, std::int64_t j, std::int64_t cols, std::int64_t k, std::int64_t count) {
        for (std::int64_t kk = 0; kk < count; ++kk) {
          const T* from = b.data + (k + kk) * b.row + j * b.col;
          for (std::int64_t x = 0; x < cols; ++x) panel[kk * G::kCols + x] = from[x * b.col];
        }
      },
      [&](std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t cols, const T* tile) {
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t x = 0; x < cols; ++x) {
            T& out = c.data[(i + r) * c.row + (j + x) * c.col];
            const T product = alpha * tile[r * G::kBlockCols + x];
            out = beta == T(0) ? product : product + beta * out;
          }
      });
}

/// The operand as the vendor's sgemm wants it: rows or columns of stride 1 that do not overlap.
struct Operand {
  bool fits = false, transposed = false;
  std::int64_t leading = 1;
};

template <class T>
Operand operand_of(const Matrix<T>& m) {
  const auto plain = [](std::int64_t rows, std::int64_t cols, std::int64_t row, std::int64_t col) {
    return (cols == 1 || col == 1) && (rows == 1 || row >= cols);
  };
  const auto lead = [](std::int64_t rows, std::int64_t cols, std::int64_t row) { return rows == 1 ? cols : row; };
  if (plain(m.rows, m.cols, m.row, m.col)) return {true, false, lead(m.rows, m.cols, m.row)};
  if (plain(m.cols, m.rows, m.col, m.row)) return {true, true, lead(m.cols, m.rows, m.col)};
  return {};
}

void product(const Context& ctx, const Matrix<double>& c, const Matrix<const double>& a, const Matrix<const double>& b,
             double alpha, double beta) {
  own_product(ctx, c, a, b, alpha, beta);
}

void product(const Context& ctx, const Matrix<float>& c, const Matrix<const float>& a, const Matrix<const float>& b,
             double alpha, double beta) {
  const Operand oa = operand_of(a), ob = operand_of(b), oc = operand_of(c);
  if (oc.transposed) return product(ctx, c.transposed(), b.transposed(), a.transposed(), alpha, beta);
  if (!oa.fits || !ob.fits || !oc.fits)
    return own_product(ctx, c, a, b, static_cast<float>(alpha), static_cast<float>(beta));
  onednn::sgemm({.transpose_a = oa.transposed,
                 .transpose_b = ob.transposed,
                 .m = c.rows,
                 .n = c.cols,
                 .k = a.cols,
                 .lda = oa.leading,
                 .ldb = ob.leading,
                 .ldc = oc.leading,
                 .alpha = static_cast<float>(alpha),
                 .beta = static_cast<float>(beta)},
                c.data, a.data, b.data);
}

template <class T>
void product_or_scale(const Context& ctx, const Matrix<T>& c, const Matrix<const T>& a, const Matrix<const T>& b,
                      double alpha, double beta) {
  if (c.rows == 0 || c.cols == 0) return;
  if (a.cols > 0) return product(ctx, c, a, b, alpha, beta);
  for (std::int64_t i = 0; i < c.rows; ++i)
    for (std::int64_t j = 0; j < c.cols; ++j) {
      T& out = c.data[i * c.row + j * c.col];
      out = beta == 0 ? T(0) : static_cast<T>(beta) * out;
    }
}

/// Multiplications from which a product is cut into parts for all threads.
constexpr std::int64_t kSharedProduct = std::int64_t{1} << 20;

/// What a thread of a team could not do, for the thread that waits for the team.
class Failure {
 public:
  template <class F>
  void keep(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      const std::lock_guard lock(guard_);
      if (!first_) first_ = std::current_exception();
    }
  }
  void raise() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex guard_;
  std::exception_ptr first_;
};

constexpr auto kUninitialised = Widened::Contents::uninitialised;

}  // namespace

void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options) {
  if (is_16bit(c.dtype)) {
    const bool reads_c = options.beta != 0.0;
    const Widened wide_a(ctx, a), wide_b(ctx, b);
    const Widened wide_c(ctx, c, reads_c ? Widened::Contents::loaded : kUninitialised);
    cpu::matmul(ctx, wide_c.view(), wide_a.view(), wide_b.view(), options);
    return wide_c.store(ctx, c);
  }
  visit_wide_floating(c.dtype, "matmul", [&]<class T>() {
    Matrix<T> to = matrix_of<T>(c);
    Matrix<const T> left = matrix_of<const T>(a), right = matrix_of<const T>(b);
    const std::int64_t batches = c.rank() == 3 ? c.size(0) : 1;
    const auto step = [&](const auto& v) { return v.rank() == 3 && v.size(0) > 1 ? v.stride(0) : 0; };
    const std::int64_t to_step = step(c), left_step = step(a), right_step = step(b);
    const auto range = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Matrix<T> one = to;
        Matrix<const T> first = left, second = right;
        one.data += i * to_step;
        first.data += i * left_step;
        second.data += i * right_step;
        product_or_scale(ctx, one, first, second, options.alpha, options.beta);
      }
    };
    // Each thread takes its share of the products, unless they are so few and large that their parts share better.
    const std::int64_t work = to.rows * to.cols * std::max<std::int64_t>(left.cols, 1);
    if (batches == 1 || (work >= kSharedProduct && batches < 4 * omp_get_max_threads())) return range(0, batches);
    Failure failure;
    parallel_ranges(batches, work / 16 + 1,
                    [&](std::int64_t begin, std::int64_t end) { failure.keep([&] { range(begin, end); }); });
    failure.raise();
  });
}

void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias) {
  if (is_16bit(y.dtype)) {
    const Widened wide_x(ctx, x), wide_w(ctx, w), wide_bias(ctx, bias), wide_y(ctx, y, kUninitialised);
    linear_forward(ctx, wide_y.view(), wide_x.view(), wide_w.view(), wide_bias.view());
    return wide_y.store(ctx, y);
  }
  if (bias.defined()) copy(ctx, y, bias);
  visit_wide_floating(y.dtype, "linear", [&]<class T>() {
    product_or_scale(ctx, matrix_of<T>(y), matrix_of<const T>(x), matrix_of<const T>(w).transposed(), 1.0,
                     bias.defined() ? 1.0 : 0.0);
  });
}

void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w) {
  if (is_16bit(dx.dtype)) {
    const Widened wide_dy(ctx, dy), wide_w(ctx, w), wide_dx(ctx, dx, kUninitialised);
    linear_backward_data(ctx, wide_dx.view(), wide_dy.view(), wide_w.view());
    return wide_dx.store(ctx, dx);
  }
  visit_wide_floating(dx.dtype, "linear_backward", [&]<class T>() {
    product_or_scale(ctx, matrix_of<T>(dx), matrix_of<const T>(dy), matrix_of<const T>(w), 1.0, 0.0);
  });
}

void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x) {
  if (is_16bit(dy.dtype) && dw.defined()) {
    const Widened wide_dy(ctx, dy), wide_x(ctx, x), wide_dw(ctx, dw, kUninitialised), wide_db(ctx, db, kUninitialised);
    linear_backward_weight(ctx, wide_dw.view(), wide_db.view(), wide_dy.view(), wide_x.view());
    wide_dw.store(ctx, dw);
    return wide_db.store(ctx, db);
  }
  if (dw.defined())
    visit_wide_floating(dw.dtype, "linear_backward", [&]<class T>() {
      product_or_scale(ctx, matrix_of<T>(dw), matrix_of<const T>(dy).transposed(), matrix_of<const T>(x), 1.0, 0.0);
    });
  if (db.defined()) {
    View row = db;
    row.sizes = {1, dy.size(1)};
    row.strides = {0, db.stride(0)};
    reduce(ctx, row, dy, ReduceOp::sum);
  }
}

}  // namespace apex::kernels::cpu
