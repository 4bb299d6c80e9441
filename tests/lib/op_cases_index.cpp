// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>

#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

Dims with(Dims index, int dim, double place) {
  index[dim] = static_cast<std::int64_t>(place);
  return index;
}
/// at() without stretching.
double exactly(const Array& a, const Dims& index) {
  std::int64_t flat = 0;
  for (int d = 0; d < index.size(); ++d) flat = flat * a.sizes[d] + index[d];
  return a.values[static_cast<std::size_t>(flat)];
}

OpCase gathered(int dim, DType index, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::gather,
          .what = concat("along ", dim, " by ", index),
          .operands = {{}, index_into(0, dim, index)},
          .shapes = std::move(shapes),
          .call = one([=](const Inputs& in) { return F::gather(in[0], dim, in[1]); }),
          .reference = gives([=](const Arrays& in) {
            return array_of(in[1].sizes,
                            [&](const Dims& i) { return exactly(in[0], with(i, dim, exactly(in[1], i))); });
          }),
          .terms = 40};
}

OpCase scattered(int dim, DType index, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::scatter_add,
          .what = concat("along ", dim, " by ", index),
          .operands = {{}, index_into(0, dim, index), {}},
          .shapes = std::move(shapes),
          .call = one([=](const Inputs& in) { return F::scatter_add(in[0], dim, in[1], in[2]); }),
          .reference = gives([=](const Arrays& in) {
            Array out = in[0];
            for_each_place(in[1].sizes, [&](const Dims& i, std::size_t flat) {
              const Dims to = with(i, dim, in[1].values[flat]);
              std::int64_t at = 0;
              for (int d = 0; d < to.size(); ++d) at = at * out.sizes[d] + to[d];
              out.values[static_cast<std::size_t>(at)] += in[2].values[flat];
            });
            return out;
          }),
          .terms = 40};
}

OpCase selected(int dim, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::index_select,
          .what = concat("along ", dim),
          .operands = {{}, index_into(0, dim)},
          .shapes = std::move(shapes),
          .call = one([=](const Inputs& in) { return F::index_select(in[0], dim, in[1]); }),
          .reference = gives([=](const Arrays& in) {
            return array_of(with(in[0].sizes, dim, static_cast<double>(in[1].values.size())), [&](const Dims& i) {
              return exactly(in[0], with(i, dim, in[1].values[static_cast<std::size_t>(i[dim])]));
            });
          }),
          .terms = 40};
}

OpCase looked_up(const char* what, DType index) {
  return {.op = Op::embedding,
          .what = what,
          .operands = {{}, index_into(0, 0, index)},
          .shapes = {{{5, 3}, {7}}, {{3, 8}, {2, 5, 3}}, {{4, 3}, {0, 2}}, {{3, 0}, {2}}, {{3, 5}, {}}},
          .call = one([](const Inputs& in) { return F::embedding(in[1], in[0]); }),
          .reference = gives([](const Arrays& in) {
            Dims sizes = in[1].sizes;
            sizes.push_back(in[0].sizes[1]);
            return array_of(sizes, [&](const Dims& i) {
              Dims place;
              for (int d = 0; d + 1 < i.size(); ++d) place.push_back(i[d]);
              return exactly(in[0], {static_cast<std::int64_t>(exactly(in[1], place)), i.back()});
            });
          }),
          .terms = 30};
}

/// Values and indices of lines along `dim`, in stable order, the first `k` (negative: all).
Arrays in_order(const Array& x, int dim, bool descending, std::int64_t k) {
  const std::int64_t length = x.sizes[dim];
  Dims sizes = x.sizes;
  if (k >= 0) sizes[dim] = k;
  const auto place = [&](const Dims& i) {
    std::vector<double> line;
    for (std::int64_t j = 0; j < length; ++j) line.push_back(exactly(x, with(i, dim, static_cast<double>(j))));
    std::vector<std::size_t> order(line.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return descending ? line[a] > line[b] : line[a] < line[b]; });
    return static_cast<double>(order[static_cast<std::size_t>(i[dim])]);
  };
  const Array indices = array_of(sizes, place);
  return {array_of(sizes, [&](const Dims& i) { return exactly(x, with(i, dim, exactly(indices, i))); }), indices};
}

OpCase sorted(int dim, bool descending) {
  return {.op = Op::sort,
          .what = concat(descending ? "descending" : "ascending", " along ", dim),
          .operands = {{}},
          .shapes = {{{3, 7}}, {{2, 5, 3, 2}}, {{4, 0}}, {{2, 33}}},
          .call =
              [=](const Inputs& in) {
                const auto [values, indices] = F::sort(in[0], dim, descending);
                return Inputs{values, indices};
              },
          .reference = [=](const Arrays& in) { return in_order(in[0], dim, descending, -1); }};
}

OpCase chosen(std::int64_t k, int dim, bool largest) {
  return {.op = Op::topk,
          .what = concat(k, largest ? " largest" : " smallest", " along ", dim),
          .operands = {{}},
          .shapes = {{{3, 11}}, {{2, 13, 3, 2}}, {{0, 17}}},
          .call =
              [=](const Inputs& in) {
                const auto [values, indices] = F::topk(in[0], k, dim, largest);
                return Inputs{values, indices};
              },
          .reference = [=](const Arrays& in) { return in_order(in[0], dim, largest, k); }};
}

OpCase encoded(DType dtype) {
  return {.op = Op::one_hot,
          .what = concat("as ", dtype),
          .operands = {whole_below(5, std::nullopt)},
          .shapes = {{{7}}, {{3, 5}}, {{0}}, {{2, 3, 3, 1}}},
          .call = one([=](const Inputs& in) { return F::one_hot(in[0], 5, dtype); }),
          .reference = gives([](const Arrays& in) {
            Dims sizes = in[0].sizes;
            sizes.push_back(5);
            std::vector<double> values(in[0].values.size() * 5, 0.0);
            for (std::size_t i = 0; i < in[0].values.size(); ++i)
              values[5 * i + static_cast<std::size_t>(in[0].values[i])] = 1;
            return Array{sizes, values};
          }),
          .gradient = Gradient::none};
}

}  // namespace

std::vector<OpCase> index_cases() {
  return {
      gathered(1, DType::i64,
               {{{3, 5}, {3, 7}},
                {{3, 5, 2}, {2, 20, 1}},
                {{2, 3, 4, 5}, {2, 3, 4, 5}},
                {{3, 5}, {3, 0}},
                {{0, 5}, {0, 3}}}),
      gathered(0, DType::i32, {{{7}, {33}}, {{5, 3}, {1, 3}}}),
      scattered(1, DType::i64,
                {{{3, 5}, {3, 7}, {3, 7}},
                 {{3, 5, 2}, {2, 20, 1}, {2, 20, 1}},
                 {{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}},
                 {{3, 5}, {3, 0}, {3, 0}},
                 {{0, 5}, {0, 3}, {0, 3}}}),
      scattered(0, DType::i32, {{{7}, {33}, {33}}, {{5, 3}, {1, 3}, {1, 3}}}),
      selected(0, {{{5, 3}, {7}}, {{5, 8}, {21}}, {{2, 3, 4, 5}, {3}}, {{5, 3}, {0}}, {{5, 0}, {3}}}),
      selected(1, {{{3, 5}, {7}}, {{2, 5, 3, 3}, {19}}}),
      looked_up("by i64", DType::i64),
      looked_up("by i32", DType::i32),
      encoded(DType::i64),
      encoded(DType::f16),
      encoded(DType::boolean),
      sorted(1, false),
      sorted(0, true),
      chosen(3, 1, true),
      chosen(2, 1, false),
      chosen(9, 1, true),
      chosen(0, 1, true),
  };
}

}  // namespace apex::test
