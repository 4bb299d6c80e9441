// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/tensor_ops.hpp"
#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

/// An op that only moves elements: result[index] = x[from(index)].
Reference moves(std::function<Dims(const Dims& sizes)> sizes,
                std::function<Dims(const Dims& index, const Dims& sizes)> from) {
  return gives([=](const Arrays& in) {
    return array_of(sizes(in[0].sizes), [&](const Dims& index) { return at(in[0], from(index, in[0].sizes)); });
  });
}
Dims same(const Dims& sizes) { return sizes; }

/// The same elements in the same order under other sizes.
Reference reshaped(std::function<Dims(const Dims& sizes)> sizes) {
  return gives([=](const Arrays& in) { return Array{sizes(in[0].sizes), in[0].values}; });
}

Dims with(Dims index, int dim, std::int64_t value) {
  index[dim] = value;
  return index;
}

OpCase sliced(std::int64_t start, std::int64_t stop, std::int64_t step, std::int64_t first, std::int64_t count) {
  return {.op = Op::slice,
          .what = concat(start, ':', stop, ':', step),
          .operands = {{}},
          .shapes = {{{2, 7, 3}}, {{2, 7, 3, 2}}, {{0, 7}}},
          .call = one([=](const Inputs& in) { return F::slice(in[0], 1, start, stop, step); }),
          .reference = moves([=](const Dims& sizes) { return with(sizes, 1, count); },
                             [=](const Dims& index, const Dims&) { return with(index, 1, first + step * index[1]); })};
}

OpCase padded(const char* what, std::vector<F::Padding> amounts, double value, std::vector<Dims> shapes) {
  OpCase c{.op = Op::pad,
           .what = what,
           .operands = {{}},
           .call = one([=](const Inputs& in) { return F::pad(in[0], amounts, value); }),
           .reference = gives([=](const Arrays& in) {
             Dims sizes = in[0].sizes;
             for (int d = 0; d < sizes.size(); ++d)
               sizes[d] += amounts[static_cast<std::size_t>(d)].before + amounts[static_cast<std::size_t>(d)].after;
             return array_of(sizes, [&](Dims index) {
               for (int d = 0; d < sizes.size(); ++d) {
                 index[d] -= amounts[static_cast<std::size_t>(d)].before;
                 if (index[d] < 0 || index[d] >= in[0].sizes[d]) return value;
               }
               return at(in[0], index);
             });
           })};
  for (const Dims& sizes : shapes) c.shapes.push_back({sizes});
  return c;
}

OpCase joined(const char* what, int dim, std::vector<std::vector<Dims>> shapes) {
  return {.op = Op::cat,
          .what = what,
          .operands = std::vector<Operand>(shapes.front().size()),
          .shapes = shapes,
          .call = one([=](const Inputs& in) { return F::cat(in, dim); }),
          .reference = gives([=](const Arrays& in) {
            const int d = dim < 0 ? dim + in[0].sizes.size() : dim;
            Dims sizes = with(in[0].sizes, d, 0);
            for (const Array& a : in) sizes[d] += a.sizes[d];
            return array_of(sizes, [&](Dims index) {
              std::size_t part = 0;
              for (; index[d] >= in[part].sizes[d]; ++part) index[d] -= in[part].sizes[d];
              std::int64_t flat = 0;  // at() would stretch a part of size 1
              for (int k = 0; k < index.size(); ++k) flat = flat * in[part].sizes[k] + index[k];
              return in[part].values[static_cast<std::size_t>(flat)];
            });
          })};
}

Dims reversed(Dims index, const Dims& sizes, const Dims& dims) {
  for (const auto d : dims) index[static_cast<int>(d)] = sizes[static_cast<int>(d)] - 1 - index[static_cast<int>(d)];
  return index;
}

}  // namespace

std::vector<OpCase> shape_cases() {
  return {
      {.op = Op::reshape,
       .operands = {{}},
       .shapes = {{{3, 5, 2}}, {{2, 3, 4, 5}}, {{0, 3}}},
       .call = one([](const Inputs& in) {
         return F::reshape(in[0], {in[0].numel(), 1});
       }),
       .reference = reshaped([](const Dims& sizes) {
         return Dims{element_count(sizes), 1};
       })},
      {.op = Op::permute,
       .operands = {{}},
       .shapes = {{{3, 5, 2}}, {{3, 0, 2}}, {{5, 3, 7}}},
       .call = one([](const Inputs& in) {
         return F::permute(in[0], {2, 0, -2});
       }),
       .reference = moves(
           [](const Dims& s) {
             return Dims{s[2], s[0], s[1]};
           },
           [](const Dims& i, const Dims&) {
             return Dims{i[1], i[2], i[0]};
           })},
      {.op = Op::permute,
       .what = "rank 4",
       .operands = {{}},
       .shapes = {{{2, 3, 4, 5}}},
       .call = one([](const Inputs& in) { return F::transpose(in[0], 1, -1); }),
       .reference = moves(
           [](const Dims& s) {
             return Dims{s[0], s[3], s[2], s[1]};
           },
           [](const Dims& i, const Dims&) {
             return Dims{i[0], i[3], i[2], i[1]};
           })},
      {.op = Op::narrow,
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 5, 3, 2}}, {{0, 5}}},
       .call = one([](const Inputs& in) { return F::narrow(in[0], 1, 1, 3); }),
       .reference = moves([](const Dims& s) { return with(s, 1, 3); },
                          [](const Dims& i, const Dims&) { return with(i, 1, i[1] + 1); })},
      sliced(1, 6, 2, 1, 3),
      sliced(-5, 100, 3, 2, 2),
      sliced(0, -1, 1, 0, 6),
      sliced(4, 2, 1, 4, 0),
      {.op = Op::flip,
       .operands = {{}},
       .shapes = {{{3, 5, 2}}, {{2, 3, 4, 5}}, {{3, 0, 2}}, {{3, 1, 33}}},
       .call = one([](const Inputs& in) {
         return F::flip(in[0], {0, 2});
       }),
       .reference = moves(same,
                          [](const Dims& i, const Dims& s) {
                            return reversed(i, s, {0, 2});
                          })},
      {.op = Op::flip,
       .what = "one",
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 3, 4, 5}}},
       .call = one([](const Inputs& in) { return F::flip(in[0], {1}); }),
       .reference = moves(same, [](const Dims& i, const Dims& s) { return reversed(i, s, {1}); })},
      padded("around", {{1, 2}, {0, 3}, {2, 0}}, 1.0, {{3, 5, 2}, {0, 3, 1}}),
      padded("and cut", {{-1, 2}, {3, -2}}, 0.0, {{3, 5}, {7, 9}}),
      padded("rank 4", {{}, {}, {1, 1}, {2, -1}}, 1.0, {{2, 3, 4, 5}}),
      joined("two", 1, {{{3, 5}, {3, 2}}, {{2, 3, 4, 5}, {2, 1, 4, 5}}, {{2, 0}, {2, 3}}, {{0, 3}, {0, 2}}}),
      joined("three, last", -1, {{{3, 5}, {3, 2}, {3, 1}}, {{7}, {1}, {3}}}),
      {.op = Op::cat,
       .what = "stack",
       .operands = {{}, {}},
       .shapes = {{{3, 5}, {3, 5}}, {{}, {}}, {{2, 3, 3}, {2, 3, 3}}},
       .call = one([](const Inputs& in) { return F::stack(in, 0); }),
       .reference = gives([](const Arrays& in) {
         Array out{{2}, in[0].values};
         for (const auto s : in[0].sizes) out.sizes.push_back(s);
         out.values.insert(out.values.end(), in[1].values.begin(), in[1].values.end());
         return out;
       })},
      {.op = Op::cat,
       .what = "roll",
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 7, 3, 1}}},
       .call = one([](const Inputs& in) { return F::roll(in[0], -2, 1); }),
       .reference = moves(same, [](const Dims& i, const Dims& s) { return with(i, 1, (i[1] + 2) % s[1]); })},
      {.op = Op::expand,
       .operands = {{}},
       .shapes = {{{3, 1, 5}}, {{1, 1, 7}}, {{0, 1, 3}}},
       .call = one([](const Inputs& in) {
         return F::expand(in[0], {2, in[0].size(0), 4, in[0].size(2)});
       }),
       .reference = moves(
           [](const Dims& s) {
             return Dims{2, s[0], 4, s[2]};
           },
           [](const Dims& i, const Dims&) {
             return Dims{i[1], 0, i[3]};
           }),
       .terms = 8},
      {.op = Op::contiguous,
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 3, 4, 5}}, {{0, 3}}},
       .call = one([](const Inputs& in) { return F::contiguous(in[0], MemoryFormat::channels_last); }),
       .reference = reshaped(same)},
      {.op = Op::cast,
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 3, 4, 5}}, {{0, 3}}},
       .call = one([](const Inputs& in) { return F::cast(in[0], DType::f64); }),
       .reference = reshaped(same)},
      {.op = Op::to_device,
       .operands = {{}},
       .shapes = {{{3, 5}}, {{2, 3, 4, 5}}, {{0, 3}}},
       .call = one([](const Inputs& in) { return F::to(in[0], kCpu); }),
       .reference = reshaped(same)},
  };
}

}  // namespace apex::test
