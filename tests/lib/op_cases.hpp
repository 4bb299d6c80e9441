// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apex/autograd/ops.hpp"
#include "apex/nn/functional.hpp"
#include "lib/support.hpp"

// The one list of cases over the op table. Each case says what to call, on what, and what must come out; ops_test.cpp
// does the rest for it: every dtype of the op's row (and that every other throws), every layout of the inputs, values
// against the reference, gradients against central differences in f64 and against f64 in every other dtype, second
// derivatives as the row declares them.
//
// To add an op: write its row in apex/autograd/ops.hpp, then here one entry in the op_cases_*.cpp of its family,
//
//   {.op = Op::square,
//    .operands = {{}},                                         // one tensor in [-1, 1)
//    .shapes = {{{3, 5}}, {{2, 3, 4, 5}}, {{0, 4}}},           // sizes of each operand; one shape with odd sizes, one
//                                                              // with none, rank 4 for channels-last
//    .call = one([](const Inputs& in) { return F::square(in[0]); }),
//    .reference = each([](double x) { return x * x; })},
//
// and a row in `apex_bench ops` that names the op (apps/bench/ops_*.cpp). A test fails for an op that lacks any of it.

namespace apex::test {

namespace F = nn::functional;

using Inputs = std::vector<Tensor>;

/// What references work on: values in row-major order.
struct Array {
  Dims sizes;
  std::vector<double> values;
};
using Arrays = std::vector<Array>;

/// What an operand holds and of which type. Without `dtype` it takes every type of the op's row in turn.
struct Operand {
  double low = -1, high = 1;        ///< real numbers in [low, high); whole ones about it in integer types
  std::optional<DType> dtype = {};  ///< always this one
  /// Whole numbers instead: how many there are, from the sizes of all operands; they are 0, 1, ... below that.
  std::function<std::int64_t(const std::vector<Dims>&)> below = {};
};
/// Numbers of places along dimension `dim` (negative from the end) of operand `of`.
Operand index_into(int of, int dim, std::optional<DType> dtype = DType::i64);
/// Whole numbers below n.
Operand whole_below(std::int64_t n, std::optional<DType> dtype = DType::i64);
Operand condition();  ///< boolean

/// checked: results require a gradient when an operand does, and it is checked. none: the op is declared to have none,
/// and its results must require none.
enum class Gradient { checked, none };

using Call = std::function<std::vector<Tensor>(const Inputs&)>;
using Reference = std::function<Arrays(const Arrays&)>;

struct OpCase {
  Op op;
  std::string what = {};  ///< tells variants of one op apart
  std::vector<Operand> operands = {};
  std::vector<std::vector<Dims>> shapes = {};
  Call call = {};
  Reference reference = {};
  Gradient gradient = Gradient::checked;
  /// Where operand 0 has one type (a condition): those of the others. 0: the row's.
  DTypeSet dtypes = 0;
  std::int64_t terms = 1;  ///< longest sum in a result: widens the tolerance
};

/// The call of an op with one result.
Call one(std::function<Tensor(const Inputs&)> f);
/// The reference of an op with one result.
Reference gives(std::function<Array(const Arrays&)> f);
/// The reference of an element-wise op of one, two or three operands that broadcast.
Reference each(double (*f)(double));
Reference each(double (*f)(double, double));
Reference each(double (*f)(double, double, double));

/// Calls f(index, flat) for every place of an array of these sizes in row-major order.
void for_each_place(const Dims& sizes, const std::function<void(const Dims& index, std::size_t flat)>& f);
/// The element at `index`; where the array has size 1 (or lacks leading dimensions), as broadcasting reads it.
double at(const Array& a, const Dims& index);
/// An array of these sizes out of f(index).
Array array_of(const Dims& sizes, const std::function<double(const Dims& index)>& f);
/// Groups of the elements that share all indices but those along `dims` (empty: all), in row-major order; `kept` gets
/// the sizes with those dimensions as 1.
std::vector<std::vector<double>> groups_of(const Array& a, const Dims& dims, Dims& kept);

/// All cases of all families.
const std::vector<OpCase>& op_cases();

// One for each family; op_cases() puts them together.
std::vector<OpCase> elementwise_cases();
std::vector<OpCase> reduction_cases();
std::vector<OpCase> shape_cases();
std::vector<OpCase> index_cases();
std::vector<OpCase> layer_cases();
std::vector<OpCase> loss_cases();
std::vector<OpCase> activation_cases();
std::vector<OpCase> pointwise_loss_cases();

}  // namespace apex::test
