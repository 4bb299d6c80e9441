// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "lib/op_cases.hpp"

#include <memory>

namespace apex::test {

Operand index_into(int of, int dim, std::optional<DType> dtype) {
  return {.dtype = dtype, .below = [of, dim](const std::vector<Dims>& sizes) {
            const Dims& pointed = sizes[static_cast<std::size_t>(of)];
            return pointed[dim < 0 ? dim + pointed.size() : dim];
          }};
}
Operand whole_below(std::int64_t n, std::optional<DType> dtype) {
  return {.dtype = dtype, .below = [n](const std::vector<Dims>&) { return n; }};
}
Operand condition() { return whole_below(2, DType::boolean); }

Call one(std::function<Tensor(const Inputs&)> f) {
  return [f = std::move(f)](const Inputs& in) { return Inputs{f(in)}; };
}
Reference gives(std::function<Array(const Arrays&)> f) {
  return [f = std::move(f)](const Arrays& in) { return Arrays{f(in)}; };
}

namespace {

Dims common_sizes(const Arrays& in) {
  Dims sizes;
  for (const Array& a : in) sizes = broadcast_shapes(sizes, a.sizes);
  return sizes;
}

template <class F>
Reference broadcasting(F f) {
  return gives(
      [f](const Arrays& in) { return array_of(common_sizes(in), [&](const Dims& index) { return f(in, index); }); });
}

}  // namespace

Reference each(double (*f)(double)) {
  return broadcasting([f](const Arrays& in, const Dims& i) { return f(at(in[0], i)); });
}
Reference each(double (*f)(double, double)) {
  return broadcasting([f](const Arrays& in, const Dims& i) { return f(at(in[0], i), at(in[1], i)); });
}
Reference each(double (*f)(double, double, double)) {
  return broadcasting([f](const Arrays& in, const Dims& i) { return f(at(in[0], i), at(in[1], i), at(in[2], i)); });
}

void for_each_place(const Dims& sizes, const std::function<void(const Dims& index, std::size_t flat)>& f) {
  const std::int64_t n = element_count(sizes);
  for (std::int64_t flat = 0; flat < n; ++flat) {
    Dims index = sizes;
    std::int64_t rest = flat;
    for (int d = sizes.size() - 1; d >= 0; --d) {
      index[d] = rest % sizes[d];
      rest /= sizes[d];
    }
    f(index, static_cast<std::size_t>(flat));
  }
}

double at(const Array& a, const Dims& index) {
  const int lead = index.size() - a.sizes.size();
  std::int64_t flat = 0;
  for (int d = 0; d < a.sizes.size(); ++d) flat = flat * a.sizes[d] + (a.sizes[d] == 1 ? 0 : index[lead + d]);
  return a.values[static_cast<std::size_t>(flat)];
}

Array array_of(const Dims& sizes, const std::function<double(const Dims& index)>& f) {
  Array out{sizes, std::vector<double>(static_cast<std::size_t>(element_count(sizes)))};
  for_each_place(sizes, [&](const Dims& index, std::size_t flat) { out.values[flat] = f(index); });
  return out;
}

std::vector<std::vector<double>> groups_of(const Array& a, const Dims& dims, Dims& kept) {
  kept = a.sizes;
  for (int d = 0; d < kept.size(); ++d) {
    bool gone = dims.empty();
    for (const auto dim : dims) gone = gone || (dim < 0 ? dim + kept.size() : dim) == d;
    if (gone) kept[d] = 1;
  }
  std::vector<std::vector<double>> out(static_cast<std::size_t>(element_count(kept)));
  for_each_place(a.sizes, [&](const Dims& index, std::size_t flat) {
    std::int64_t group = 0;
    for (int d = 0; d < kept.size(); ++d) group = group * kept[d] + (kept[d] == 1 ? 0 : index[d]);
    out[static_cast<std::size_t>(group)].push_back(a.values[flat]);
  });
  return out;
}

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> out;
    for (auto* family : {elementwise_cases, reduction_cases, shape_cases, index_cases, layer_cases, loss_cases,
                         activation_cases, pointwise_loss_cases})
      for (OpCase& c : family()) out.push_back(std::move(c));
    return out;
  }();
  return all;
}

}  // namespace apex::test
