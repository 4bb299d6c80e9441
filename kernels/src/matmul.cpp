// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/matmul.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "checks.hpp"
#include "matmul_impl.hpp"

namespace apex::kernels {
namespace {

void check_matrix(const char* op, const Context& ctx, const char* name, const ConstView& v, DType dtype) {
  check_given(op, ctx, name, v);
  check_dtype(op, name, v, dtype);
}

/// Ranks and sizes of c = a b.
void check_product(const ConstView& c, const ConstView& a, const ConstView& b) {
  if (c.rank() < 2) fail(Kind::argument, concat("matmul: c has sizes ", c.sizes, ", wanted rank 2 or more"));
  for (const auto& [name, v] : {std::pair{"a", &a}, std::pair{"b", &b}})
    if (v->rank() < 2 || v->rank() > c.rank())
      fail(Kind::argument,
           concat("matmul: ", name, " has sizes ", v->sizes, ", wanted rank 2 to ", c.rank(), " (c's)"));
  bool fits = a.size(-1) == b.size(-2) && c.size(-2) == a.size(-2) && c.size(-1) == b.size(-1);
  for (const auto* v : {&a, &b})
    for (int i = 3; i <= v->rank(); ++i) fits = fits && (v->size(-i) == c.size(-i) || v->size(-i) == 1);
  if (!fits) fail(Kind::argument, concat("matmul: sizes ", a.sizes, " times ", b.sizes, " do not give ", c.sizes));
}

/// The products of one matmul: the matrices of the first, and the dimensions along which the others lie.
class Batches {
 public:
  Batches(const View& c, const ConstView& a, const ConstView& b) : c_(matrix(c)), a_(matrix(a)), b_(matrix(b)) {
    for (int i = c.rank(); i > 2; --i) {
      const Dim d{c.size(-i), c.stride(-i), step(a, i), step(b, i)};
      if (d.size == 1) continue;
      if (count_ > 0 && continues(dims_[count_ - 1], d))
        dims_[count_ - 1] = {dims_[count_ - 1].size * d.size, d.c, d.a, d.b};
      else
        dims_[count_++] = d;
    }
  }

  /// Makes dimensions rows of a and c where they share b, and columns of b and c where they share a.
  void fold() {
    for (std::size_t i = count_; i-- > 0;) {
      const Dim d = dims_[i];
      if (d.b == 0 && joins(a_, 0, d.size, d.a) && joins(c_, 0, d.size, d.c)) {
        join(a_, 0, d.size, d.a);
        join(c_, 0, d.size, d.c);
      } else if (d.a == 0 && joins(b_, 1, d.size, d.b) && joins(c_, 1, d.size, d.c)) {
        join(b_, 1, d.size, d.b);
        join(c_, 1, d.size, d.c);
      } else {
        continue;
      }
      for (std::size_t k = i + 1; k < count_; ++k) dims_[k - 1] = dims_[k];
      --count_;
    }
  }

  /// Calls f(c, a, b) for every batch; the longest dimension is the batch.
  template <class F>
  void for_each(F&& f) const {
    if (count_ == 0) return f(c_, a_, b_);
    std::size_t longest = 0;
    for (std::size_t i = 1; i < count_; ++i)
      if (dims_[i].size > dims_[longest].size) longest = i;
    const Dim batch = dims_[longest];
    std::int64_t others = 1;
    for (std::size_t i = 0; i < count_; ++i)
      if (i != longest) others *= dims_[i].size;
    for (std::int64_t flat = 0; flat < others; ++flat) {
      std::int64_t rest = flat, c = 0, a = 0, b = 0;
      for (std::size_t i = count_; i-- > 0;) {
        if (i == longest) continue;
        const std::int64_t at = rest % dims_[i].size;
        rest /= dims_[i].size;
        c += at * dims_[i].c;
        a += at * dims_[i].a;
        b += at * dims_[i].b;
      }
      for (std::int64_t begin = 0; begin < batch.size; begin += kMost) {
        const std::int64_t size = std::min(kMost, batch.size - begin);
        f(stack(c_, c + begin * batch.c, size, batch.c), stack(a_, a + begin * batch.a, size, batch.a),
          stack(b_, b + begin * batch.b, size, batch.b));
      }
    }
  }

 private:
  static constexpr std::int64_t kMost = 0x7fffffff;  // matrices of a batch, rows of a matrix

  struct Dim {
    std::int64_t size = 1, c = 0, a = 0, b = 0;  // steps in elements, 0 where one matrix serves all
  };

  static std::int64_t step(const ConstView& v, int from_end) {
    return from_end <= v.rank() && v.size(-from_end) > 1 ? v.stride(-from_end) : 0;
  }
  static bool continues(const Dim& outer, const Dim& inner) {
    return outer.c == inner.c * inner.size && outer.a == inner.a * inner.size && outer.b == inner.b * inner.size;
  }
  /// Whether `size` matrices `step` apart are one with more rows (dim 0) or columns (dim 1) that libraries can count.
  template <class V>
  static bool joins(const V& v, int dim, std::int64_t size, std::int64_t step) {
    return step > 0 && v.sizes[dim] <= kMost / size && (v.sizes[dim] == 1 || step == v.sizes[dim] * v.strides[dim]);
  }
  template <class V>
  static void join(V& v, int dim, std::int64_t size, std::int64_t step) {
    if (v.sizes[dim] == 1) v.strides[dim] = step;
    v.sizes[dim] *= size;
  }
  template <class V>
  static V matrix(V v) {
    v.strides = {v.stride(-2), v.stride(-1)};
    v.sizes = {v.size(-2), v.size(-1)};
    return v;
  }
  template <class V>
  static V stack(V v, std::int64_t offset, std::int64_t size, std::int64_t step) {
    using Bytes = std::conditional_t<std::is_same_v<V, View>, char*, const char*>;
    v.data = static_cast<Bytes>(v.data) + offset * static_cast<std::int64_t>(size_of(v.dtype));
    v.sizes = {step == 0 ? 1 : size, v.sizes[0], v.sizes[1]};
    v.strides = {step, v.strides[0], v.strides[1]};
    return v;
  }

  View c_;
  ConstView a_, b_;
  std::array<Dim, kMaxRank> dims_{};
  std::size_t count_ = 0;
};

}  // namespace

void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options) {
  check_given("matmul", ctx, "c", c);
  check_floating("matmul", "c", c);
  check_writable("matmul", "c", c);
  check_matrix("matmul", ctx, "a", a, c.dtype);
  check_matrix("matmul", ctx, "b", b, c.dtype);
  check_product(c, a, b);
  if (c.numel() == 0) return;
  if (ctx.device.is_cuda() && !has_cuda) throw_not_built("matmul", ctx.device);
  Batches batches(c, a, b);
  batches.fold();
  batches.for_each([&](const View& to, const ConstView& left, const ConstView& right) {
    if (ctx.device.is_cpu()) return cpu::matmul(ctx, to, left, right, options);
    if constexpr (has_cuda) cuda::matmul(ctx, to, left, right, options);
  });
}

void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias) {
  check_given("linear", ctx, "y", y);
  check_floating("linear", "y", y);
  check_writable("linear", "y", y);
  check_matrix("linear", ctx, "x", x, y.dtype);
  check_matrix("linear", ctx, "w", w, y.dtype);
  check_rank("linear", "x", x, 2);
  check_rank("linear", "w", w, 2);
  if (x.size(1) != w.size(1))
    fail(Kind::argument, concat("linear: x has sizes ", x.sizes, ", w takes ", w.size(1), " features"));
  check_sizes("linear", "y", y, {x.size(0), w.size(0)});
  check_optional("linear", ctx, "bias", bias);
  if (bias.defined()) {
    check_dtype("linear", "bias", bias, y.dtype);
    check_sizes("linear", "bias", bias, {w.size(0)});
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_forward(ctx, y, x, w, bias);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_forward(ctx, y, x, w, bias);
  }
  throw_not_built("linear", ctx.device);
}

void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w) {
  check_given("linear_backward", ctx, "dx", dx);
  check_floating("linear_backward", "dx", dx);
  check_writable("linear_backward", "dx", dx);
  check_matrix("linear_backward", ctx, "dy", dy, dx.dtype);
  check_matrix("linear_backward", ctx, "w", w, dx.dtype);
  check_rank("linear_backward", "dy", dy, 2);
  check_rank("linear_backward", "w", w, 2);
  if (dy.size(1) != w.size(0))
    fail(Kind::argument, concat("linear_backward: dy has sizes ", dy.sizes, ", w gives ", w.size(0), " features"));
  check_sizes("linear_backward", "dx", dx, {dy.size(0), w.size(1)});
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_backward_data(ctx, dx, dy, w);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_backward_data(ctx, dx, dy, w);
  }
  throw_not_built("linear_backward", ctx.device);
}

void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x) {
  check_given("linear_backward", ctx, "dy", dy);
  check_floating("linear_backward", "dy", dy);
  check_matrix("linear_backward", ctx, "x", x, dy.dtype);
  check_rank("linear_backward", "dy", dy, 2);
  check_rank("linear_backward", "x", x, 2);
  if (dy.size(0) != x.size(0))
    fail(Kind::argument, concat("linear_backward: dy has ", dy.size(0), " rows, x has ", x.size(0)));
  check_optional("linear_backward", ctx, "dw", dw);
  check_optional("linear_backward", ctx, "db", db);
  if (dw.defined()) {
    check_dtype("linear_backward", "dw", dw, dy.dtype);
    check_sizes("linear_backward", "dw", dw, {dy.size(1), x.size(1)});
    check_writable("linear_backward", "dw", dw);
  }
  if (db.defined()) {
    check_dtype("linear_backward", "db", db, dy.dtype);
    check_sizes("linear_backward", "db", db, {dy.size(1)});
    check_writable("linear_backward", "db", db);
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_backward_weight(ctx, dw, db, dy, x);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_backward_weight(ctx, dw, db, dy, x);
  }
  throw_not_built("linear_backward", ctx.device);
}

}  // namespace apex::kernels
