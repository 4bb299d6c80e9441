// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/indexing.hpp"

#include "apex/kernels/reduce.hpp"
#include "apex/kernels/sort.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

/// Zeros like `like` plus src at the places of index: the gradient of every op here. The index fits.
Tensor scattered(const Like& like, const Tensor& src_in, const Tensor& index, int dim) {
  Tensor src = src_in;
  OpScope op(Op::scatter_add, {&src});
  Tensor y = like.empty_beside(src);
  kernels::scatter_add(y.context(), y.view(), ConstView(), src.view(), index.view(), dim);
  return op.record(y, {src}, {{"index", index}},
                   [index, dim](const Tensor& dy) -> Gradients { return {gather(dy, dim, index)}; });
}

/// @param given  the indices as the caller gave them
Tensor gathered(Op which, Tensor x, int dim, Tensor index, const Tensor& given) {
  OpScope op(which, {&x, &index});
  if (!index.defined()) fail(Kind::argument, concat(op.row().name, ": index is not given"));
  Tensor y = empty(index.sizes(), x.dtype(), x.device(), x.memory_format());
  kernels::gather(x.context(), y.view(), x.view(), index.view(), dim, {op.row().name, given.view()});
  return op.record(y, {x, index}, {{"index", index}}, [like = Like(x), index, dim](const Tensor& dy) -> Gradients {
    return {scattered(like, dy, index, dim), Tensor()};
  });
}

/// A list of indices along `dim` as every line along it has it.
Tensor for_every_line(const Tensor& index, Dims sizes, int dim) {
  Dims strides = Dims::filled(sizes.size(), 0);
  sizes[dim] = index.numel();
  strides[dim] = index.strides()[0];
  return views::as_strided(index, sizes, strides, index.storage_offset());
}

Ordered ordered(const OpScope& op, const Tensor& x, Tensor values, Tensor indices, int dim) {
  return {op.record(values, {x}, {{"indices", indices}},
                    [like = Like(x), indices, dim](const Tensor& dy) -> Gradients {
                      return {scattered(like, dy, indices, dim)};
                    }),
          indices};
}

}  // namespace

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  if (x.defined()) dim = wrap_dim(dim, x.dim(), "gather");
  return gathered(Op::gather, x, dim, index, index);
}

Tensor scatter_add(const Tensor& x_in, int dim, const Tensor& index_in, const Tensor& src_in) {
  Tensor x = x_in, index = index_in, src = src_in;
  OpScope op(Op::scatter_add, {&x, &index, &src});
  if (!index.defined() || !src.defined())
    fail(Kind::argument, concat("scatter_add: ", index.defined() ? "src" : "index", " is not given"));
  const int d = wrap_dim(dim, x.dim(), "scatter_add");
  Tensor y = empty_like(x);
  kernels::scatter_add(y.context(), y.view(), x.view(), src.view(), index.view(), d);
  return op.record(y, {x, index, src}, {{"index", index}},
                   [index, d](const Tensor& dy, std::span<const bool> needs) -> Gradients {
                     Gradients g(3);
                     if (needs[0]) g[0] = dy;
                     if (needs[2]) g[2] = gather(dy, d, index);
                     return g;
                   });
}

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  if (!x.defined()) fail(Kind::argument, "index_select: the first input is an undefined tensor");
  if (!index.defined() || index.dim() != 1)
    fail(Kind::argument, concat("index_select: index must be of rank 1, is ",
                                index.defined() ? to_string(index.sizes()) : std::string("undefined")));
  const int d = wrap_dim(dim, x.dim(), "index_select");
  return gathered(Op::index_select, x, d, for_every_line(index, x.sizes(), d), index);
}

Tensor embedding(const Tensor& indices_in, const Tensor& weight_in, std::optional<std::int64_t> padding_idx) {
  Tensor weight = weight_in, indices = indices_in;
  OpScope op(Op::embedding, {&weight, &indices});
  if (weight.dim() != 2 || !indices.defined())
    fail(Kind::argument, concat("embedding: weight of sizes ", weight.sizes(), " must be [entries, features], with ",
                                "indices to look up"));
  const std::int64_t entries = weight.size(0), features = weight.size(1);
  const auto given = padding_idx;
  if (padding_idx && *padding_idx < 0) *padding_idx += entries;
  if (padding_idx && (*padding_idx < 0 || *padding_idx >= entries))
    fail(Kind::argument, concat("embedding: padding_idx ", *given, " is outside of ", entries, " entries"));
  Dims sizes = indices.sizes();
  sizes.push_back(features);
  Tensor y = empty(sizes, weight.dtype(), weight.device());
  const Tensor list = reshape(indices, {-1});
  const Tensor index = for_every_line(list, {list.numel(), features}, 0);
  kernels::gather(y.context(), views::reshape(y, index.sizes()).view(), weight.view(), index.view(), 0,
                  {op.row().name, indices.view()});
  return op.record(y, {weight, indices}, {{"indices", list}},
                   [like = Like(weight), list, index, padding_idx](const Tensor& dy) -> Gradients {
                     const Tensor rows = reshape(dy, index.sizes());
                     if (grad_mode()) {
                       if (!padding_idx) return {scattered(like, rows, index, 0), Tensor()};
                       const Tensor padding = full({}, static_cast<double>(*padding_idx), list.dtype(), list.device());
                       const Tensor kept = where(reshape(ne(list, padding), {list.numel(), 1}), rows,
                                                 zeros({}, rows.dtype(), rows.device()));
                       return {scattered(like, kept, index, 0), Tensor()};
                     }
                     Tensor dweight = empty(like.sizes, dy.dtype(), dy.device());
                     kernels::scatter_add(dy.context(), dweight.view(), ConstView(), rows.view(), index.view(), 0,
                                          {.ignore_index = padding_idx});
                     return {dweight, Tensor()};
                   });
}

Tensor one_hot(const Tensor& labels_in, std::int64_t classes, DType dtype) {
  Tensor labels = labels_in;
  OpScope op(Op::one_hot, {&labels});
  if (classes < 1) fail(Kind::argument, concat("one_hot: ", classes, " classes; at least one is needed"));
  Dims sizes = labels.sizes();
  sizes.push_back(classes);
  Tensor y = empty(sizes, dtype, labels.device());
  kernels::one_hot(y.context(), y.view(), labels.view());
  return y;
}

Ordered sort(const Tensor& x_in, int dim, bool descending) {
  Tensor x = x_in;
  OpScope op(Op::sort, {&x});
  const int d = wrap_dim(dim, x.dim(), "sort");
  Tensor values = empty_like(x), indices = empty_like(x, DType::i64);
  kernels::sort(x.context(), values.view(), indices.view(), x.view(), d, descending);
  return ordered(op, x, values, indices, d);
}

Ordered topk(const Tensor& x_in, std::int64_t k, int dim, bool largest) {
  Tensor x = x_in;
  OpScope op(Op::topk, {&x});
  const int d = wrap_dim(dim, x.dim(), "topk");
  if (k < 0 || k > x.sizes()[d])
    fail(Kind::argument, concat("topk: k is ", k, ", dimension ", dim, " of x has size ", x.sizes()[d]));
  Dims sizes = x.sizes();
  sizes[d] = k;
  Tensor values = empty(sizes, x.dtype(), x.device(), x.memory_format());
  Tensor indices = empty(sizes, DType::i64, x.device(), x.memory_format());
  kernels::topk(x.context(), values.view(), indices.view(), x.view(), k, d, largest);
  return ordered(op, x, values, indices, d);
}

}  // namespace apex::nn::functional
