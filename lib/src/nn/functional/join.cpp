// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <vector>

#include "apex/core/size_arithmetic.hpp"
#include "common.hpp"

// Cutting tensors and putting them together: slice, flip, roll, pad, cat, stack.

namespace apex::nn::functional {

namespace {

/// Every step-th element of a dimension.
struct Range {
  std::int64_t start, count, step;
};

Tensor view_of(const Tensor& x, int dim, const Range& r) {
  Dims sizes = x.sizes(), strides = x.strides();
  const std::int64_t offset = x.storage_offset() + (r.count > 0 && x.numel() > 0 ? r.start * strides[dim] : 0);
  sizes[dim] = r.count;
  if (r.count > 1) strides[dim] *= r.step;
  return views::as_strided(x, sizes, strides, offset);
}

Dims padded_sizes(const Tensor& x, std::span<const Padding> amounts) {
  if (static_cast<int>(amounts.size()) != x.dim())
    fail(Kind::argument, concat("pad: ", amounts.size(), " amounts for sizes ", x.sizes(), "; one for each dimension"));
  Dims sizes = x.sizes();
  for (int d = 0; d < x.dim(); ++d) {
    const auto [before, after] = amounts[static_cast<std::size_t>(d)];
    // What is cut is at most the size, so that these differences are in range whatever the amounts are.
    const std::int64_t left = sizes[d] + std::min<std::int64_t>(0, std::max(before, -sizes[d] - 1));
    if (left < 0 || left + std::min<std::int64_t>(0, std::max(after, -sizes[d] - 1)) < 0)
      fail(Kind::argument, concat("pad: ", before, " before and ", after, " after cut more than dimension ", d,
                                  " of sizes ", x.sizes(), " has"));
    sizes[d] = size_of_sum("pad", 1, before < after ? before : after, sizes[d]);
    sizes[d] = size_of_sum("pad", 1, before < after ? after : before, sizes[d]);
  }
  return sizes;
}

std::vector<Tensor*> pointers_to(std::vector<Tensor>& tensors) {
  std::vector<Tensor*> out;
  for (Tensor& t : tensors) out.push_back(&t);
  return out;
}

}  // namespace

Tensor slice(const Tensor& x_in, int dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  Tensor x = x_in;
  OpScope op(Op::slice, {&x});
  const int d = wrap_dim(dim, x.dim(), "slice");
  if (step < 1) fail(Kind::argument, concat("slice: step is ", step, ", wanted 1 or more"));
  const std::int64_t size = x.sizes()[d];
  const auto in_range = [size](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  const std::int64_t first = in_range(start), last = std::max(first, in_range(stop));
  const Range range{first, last == first ? 0 : (last - first - 1) / step + 1, step};
  return op.record(view_of(x, d, range), {x}, {}, [like = Like(x), d, range, last](const Tensor& dy) -> Gradients {
    Tensor dx = like.zeros_beside(dy);
    copy_of(dy, view_of(dx, d, range));
    return {
        record_linear("slice", dx, dy, [=](const Tensor& g) { return slice(g, d, range.start, last, range.step); })};
  });
}

Tensor flip(const Tensor& x_in, const Dims& dims) {
  Tensor x = x_in;
  OpScope op(Op::flip, {&x});
  Dims strides = x.strides();
  std::int64_t offset = x.storage_offset();
  bool flipped[kMaxRank] = {};
  for (const auto dim : dims) {
    const int d = wrap_dim(static_cast<int>(dim), x.dim(), "flip");
    if (flipped[d]) fail(Kind::argument, concat("flip: dimension ", dim, " is named twice in ", dims));
    flipped[d] = true;
    if (x.numel() > 0) offset += (x.sizes()[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  Tensor y = copy_of(views::as_strided(x, x.sizes(), strides, offset), empty_like(x));
  return op.record(y, {x}, {}, [dims](const Tensor& dy) -> Gradients { return {flip(dy, dims)}; });
}

Tensor roll(const Tensor& x, std::int64_t shift, int dim) {
  const int d = wrap_dim(dim, x.dim(), "roll");
  const std::int64_t size = x.sizes()[d];
  if (size == 0) return x;
  const std::int64_t moved = shift % size + (shift % size < 0 ? size : 0);
  if (moved == 0) return x;
  return cat({narrow(x, d, size - moved, moved), narrow(x, d, 0, size - moved)}, d);
}

Tensor pad(const Tensor& x_in, std::span<const Padding> amounts, double value) {
  Tensor x = x_in;
  OpScope op(Op::pad, {&x});
  const Dims sizes = padded_sizes(x, amounts);
  Tensor y = empty(sizes, x.dtype(), x.device(), x.memory_format());
  Tensor from = x.detach(), to = y.detach();
  for (int d = 0; d < x.dim(); ++d) {  // each dimension's border within what the dimensions before it have left
    const auto [before, after] = amounts[static_cast<std::size_t>(d)];
    const std::int64_t cut = std::max<std::int64_t>(0, -before),
                       kept = from.sizes()[d] - cut - std::max<std::int64_t>(0, -after);
    from = views::narrow(from, d, cut, kept);
    const std::int64_t front = std::max<std::int64_t>(0, before), behind = std::max<std::int64_t>(0, after);
    if (front > 0) kernels::fill(y.context(), views::narrow(to, d, 0, front).view(), value);
    if (behind > 0) kernels::fill(y.context(), views::narrow(to, d, front + kept, behind).view(), value);
    to = views::narrow(to, d, front, kept);
  }
  copy_of(from, to);
  std::vector<Padding> back;
  for (const auto& [before, after] : amounts) back.push_back({-before, -after});
  return op.record(y, {x}, {}, [back](const Tensor& dy) -> Gradients { return {pad(dy, back)}; });
}

Tensor pad(const Tensor& x, std::initializer_list<Padding> amounts, double value) {
  return pad(x, std::span<const Padding>(amounts.begin(), amounts.size()), value);
}

Tensor cat(std::span<const Tensor> tensors, int dim) {
  if (tensors.empty()) fail(Kind::argument, "cat: an empty list of tensors");
  std::vector<Tensor> parts(tensors.begin(), tensors.end());
  OpScope op(Op::cat, pointers_to(parts));
  const Tensor& first = parts.front();
  const int d = wrap_dim(dim, first.dim(), "cat");
  Dims sizes = first.sizes();
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) fail(Kind::argument, concat("cat: tensor ", i, " is undefined"));
    if (parts[i].dtype() != first.dtype())
      fail(Kind::argument, concat("cat: tensor ", i, " is ", parts[i].dtype(), ", the first is ", first.dtype()));
    Dims other = parts[i].sizes();
    if (other.size() == sizes.size()) other[d] = sizes[d];
    if (other != sizes)
      fail(Kind::argument, concat("cat: tensor ", i, " of sizes ", parts[i].sizes(), " beside ", first.sizes(),
                                  "; they may differ along dimension ", d, " only"));
    lengths.push_back(parts[i].sizes()[d]);
  }
  sizes[d] = 0;
  for (const std::int64_t n : lengths) sizes[d] = size_of_sum("cat", 1, n, sizes[d]);
  Tensor y = empty(sizes, first.dtype(), first.device(), first.memory_format());
  std::int64_t at = 0;
  for (const Tensor& part : parts) {
    copy_of(part, views::narrow(y, d, at, part.sizes()[d]));
    at += part.sizes()[d];
  }
  return op.record(y, parts, {}, [d, lengths](const Tensor& dy, std::span<const bool> needs) -> Gradients {
    Gradients g(lengths.size());
    std::int64_t from = 0;
    for (std::size_t i = 0; i < lengths.size(); from += lengths[i++])
      if (needs[i]) g[i] = narrow(dy, d, from, lengths[i]);
    return g;
  });
}

Tensor cat(std::initializer_list<Tensor> tensors, int dim) {
  return cat(std::span<const Tensor>(tensors.begin(), tensors.size()), dim);
}

Tensor stack(std::span<const Tensor> tensors, int dim) {
  std::vector<Tensor> parts;
  for (const Tensor& t : tensors) {
    if (!t.defined()) fail(Kind::argument, concat("stack: tensor ", parts.size(), " is undefined"));
    if (t.sizes() != tensors.front().sizes())
      fail(Kind::argument, concat("stack: tensor ", parts.size(), " of sizes ", t.sizes(), " beside ",
                                  tensors.front().sizes(), "; they must agree"));
    const int d = wrap_dim(dim, t.dim() + 1, "stack");
    Dims sizes;
    for (int i = 0; i <= t.dim(); ++i) sizes.push_back(i == d ? 1 : t.sizes()[i < d ? i : i - 1]);
    parts.push_back(reshape(t, sizes));
  }
  if (parts.empty()) fail(Kind::argument, "stack: an empty list of tensors");
  return cat(parts, dim);
}

Tensor stack(std::initializer_list<Tensor> tensors, int dim) {
  return stack(std::span<const Tensor>(tensors.begin(), tensors.size()), dim);
}

}  // namespace apex::nn::functional
