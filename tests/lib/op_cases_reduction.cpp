// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/op_cases.hpp"

namespace apex::test {

namespace {

using Reduction = Tensor (*)(const Tensor&, const Dims&, bool);
using Group = std::vector<double>;

/// A reduction over `dims`, by what it makes of the elements that meet in one result.
OpCase over(Op op, Reduction f, double (*of)(const Group&), Dims dims, bool keepdim = false) {
  return {.op = op,
          .what = concat("over ", dims, keepdim ? " kept" : ""),
          .operands = {{}},
          .shapes = {{{3, 5, 7}}, {{2, 3, 4, 5}}, {{5, 0, 3}}},
          .call = one([=](const Inputs& in) { return f(in[0], dims, keepdim); }),
          .reference = gives([=](const Arrays& in) {
            Array out;
            for (const Group& g : groups_of(in[0], dims, out.sizes)) out.values.push_back(of(g));
            Dims sizes;
            for (int d = 0; d < out.sizes.size(); ++d) {
              bool gone = dims.empty();
              for (const auto dim : dims) gone = gone || (dim < 0 ? dim + out.sizes.size() : dim) == d;
              if (keepdim || !gone) sizes.push_back(out.sizes[d]);
            }
            out.sizes = sizes;
            return out;
          }),
          .terms = 120};
}

double sum_of(const Group& g) { return std::accumulate(g.begin(), g.end(), 0.0); }
double mean_of(const Group& g) { return sum_of(g) / static_cast<double>(g.size()); }
double max_of(const Group& g) { return *std::max_element(g.begin(), g.end()); }
double min_of(const Group& g) { return *std::min_element(g.begin(), g.end()); }
double any_of(const Group& g) {
  return std::any_of(g.begin(), g.end(), [](double v) { return v != 0; });
}
double all_of(const Group& g) {
  return std::all_of(g.begin(), g.end(), [](double v) { return v != 0; });
}

OpCase without_gradient(OpCase c) {
  c.gradient = Gradient::none;
  return c;
}
/// max and min are not defined over nothing: a shape with nothing in another dimension.
OpCase kept_empty(OpCase c) {
  c.shapes.back() = {{5, 3, 0}};
  return c;
}

OpCase place(Op op, Tensor (*f)(const Tensor&, int, bool), bool largest, int dim, bool keepdim) {
  return {.op = op,
          .what = concat("along ", dim, keepdim ? " kept" : ""),
          .operands = {{}},
          .shapes = {{{3, 5, 7}}, {{2, 3, 4, 5}}, {{5, 3, 0}}},
          .call = one([=](const Inputs& in) { return f(in[0], dim, keepdim); }),
          .reference = gives([=](const Arrays& in) {
            Array out;
            for (const Group& g : groups_of(in[0], {dim}, out.sizes)) {
              const auto found = largest ? std::max_element(g.begin(), g.end()) : std::min_element(g.begin(), g.end());
              out.values.push_back(static_cast<double>(found - g.begin()));
            }
            if (!keepdim) {
              Dims sizes;
              for (int d = 0; d < out.sizes.size(); ++d)
                if (d != (dim < 0 ? dim + out.sizes.size() : dim)) sizes.push_back(out.sizes[d]);
              out.sizes = sizes;
            }
            return out;
          }),
          .gradient = Gradient::none};
}

OpCase running(int dim) {
  return {.op = Op::cumsum,
          .what = concat("along ", dim),
          .operands = {{}},
          .shapes = {{{3, 5, 7}}, {{2, 3, 4, 5}}, {{5, 0, 3}}, {{2, 67, 2}}},
          .call = one([=](const Inputs& in) { return F::cumsum(in[0], dim); }),
          .reference = gives([=](const Arrays& in) {
            const int d = dim < 0 ? dim + in[0].sizes.size() : dim;
            return array_of(in[0].sizes, [&](const Dims& index) {
              double sum = 0;
              Dims from = index;
              for (from[d] = 0; from[d] <= index[d]; ++from[d]) sum += at(in[0], from);
              return sum;
            });
          }),
          .terms = 67};
}

}  // namespace

std::vector<OpCase> reduction_cases() {
  return {
      over(Op::sum, F::sum, sum_of, {}),
      over(Op::sum, F::sum, sum_of, {1}),
      over(Op::sum, F::sum, sum_of, {0, -1}, true),
      over(Op::mean, F::mean, mean_of, {-1}),
      kept_empty(over(Op::mean, F::mean, mean_of, {0, 1}, true)),
      kept_empty(over(Op::max, F::max, max_of, {1})),
      kept_empty(over(Op::max, F::max, max_of, {0, 1}, true)),
      kept_empty(over(Op::min, F::min, min_of, {0})),
      without_gradient(over(Op::any, F::any, any_of, {1})),
      without_gradient(over(Op::any, F::any, any_of, {}, true)),
      without_gradient(over(Op::all, F::all, all_of, {-2})),
      place(Op::argmax, F::argmax, true, 1, false),
      place(Op::argmax, F::argmax, true, -2, true),
      place(Op::argmin, F::argmin, false, 0, false),
      place(Op::argmin, F::argmin, false, 1, true),
      running(1),
      running(-1),
      running(0),
  };
}

}  // namespace apex::test
