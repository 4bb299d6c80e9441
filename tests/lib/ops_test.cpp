// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Every op of the table through the one list of cases (op_cases.hpp).
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "apex/core/error.hpp"
#include "lib/op_cases.hpp"
#include "support/tolerance.hpp"

namespace apex::test {
namespace {

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

/// How the operands of a call lie in memory.
enum class Layout { contiguous, channels_last, gaps, misaligned, mixed };
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::channels_last, Layout::gaps, Layout::misaligned,
                               Layout::mixed};
const char* name_of(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "channels-last", "with gaps", "misaligned", "one with gaps"};
  return kNames[static_cast<int>(layout)];
}

DTypeSet declared(const OpCase& c) { return c.dtypes != 0 ? c.dtypes : row_of(c.op).dtypes; }
bool takes_part(const Operand& o) { return !o.dtype && !o.below; }  // follows the dtype, and may have a gradient

/// What operand k holds, of type `dtype` unless it has one of its own.
Array contents(const OpCase& c, const std::vector<Dims>& sizes, std::size_t k, DType dtype) {
  const Operand& o = c.operands[k];
  if (o.dtype) dtype = *o.dtype;
  std::int64_t below = o.below ? o.below(sizes) : 0;
  double low = o.low, high = o.high;
  if (!o.below && !is_floating(dtype)) {  // whole numbers about 0, or from it
    low = dtype == DType::u8 || dtype == DType::boolean ? 0 : -9;
    high = dtype == DType::boolean ? 2 : 10;
  }
  Array a{sizes[k], {}};
  for (std::int64_t i = 0; i < element_count(sizes[k]); ++i) {
    const double u = unit(101 * k + 7, static_cast<std::uint64_t>(i));
    const double x = o.below ? std::floor(u * static_cast<double>(below)) : low + (high - low) * u;
    a.values.push_back(o.below || !is_floating(dtype) ? std::floor(x) : x);
  }
  return a;
}

Tensor laid(const Array& a, DType dtype, Layout layout, std::size_t k) {
  const auto format = layout == Layout::channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  const Tensor t = from_list(a.sizes, dtype, a.values, format);
  if (layout == Layout::gaps || (layout == Layout::mixed && k == 0)) return spread_out(t);
  return layout == Layout::misaligned ? misaligned(t) : t;
}

Inputs operands(const OpCase& c, const std::vector<Dims>& sizes, DType dtype, Layout layout) {
  Inputs in;
  for (std::size_t k = 0; k < c.operands.size(); ++k)
    in.push_back(laid(contents(c, sizes, k, dtype), c.operands[k].dtype.value_or(dtype), layout, k));
  return in;
}

Arrays stored(const Inputs& in) {
  Arrays out;
  for (const Tensor& t : in) out.push_back({t.sizes(), to_f64(t)});
  return out;
}

/// A whole number as a type of integers keeps it.
double kept_by(DType dtype, double value) {
  if (dtype == DType::boolean) return value != 0;
  if (dtype == DType::u8) return static_cast<double>(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
  return value;
}

Tolerance tolerance_of(const OpCase& c, DType dtype) {
  if (!is_floating(dtype)) return {};
  return c.terms > 1 ? product_tolerance(dtype, c.terms) : forward_tolerance(dtype);
}

/// The gradients of the first result, weighted, with respect to all operands that take part.
std::vector<Tensor> gradients(const OpCase& c, const Inputs& in, const Array& weights) {
  for (std::size_t k = 0; k < in.size(); ++k)
    if (takes_part(c.operands[k])) leaf(in[k]);
  const Tensor y = c.call(in).front();
  EXPECT_TRUE(requires_grad(y));
  if (!requires_grad(y)) return {};
  backward(y, F::to(from_list(y.sizes(), y.dtype(), weights.values), y.device()));  // it may lie elsewhere
  std::vector<Tensor> out;
  for (std::size_t k = 0; k < in.size(); ++k)
    if (takes_part(c.operands[k])) out.push_back(grad(in[k]));
  return out;
}

/// Weights that 16-bit types hold exactly.
Array weights_for(const Tensor& y) {
  return array_of(y.sizes(), [i = 0](const Dims&) mutable { return std::round(16 * std::cos(0.9 * i++ + 0.3)) / 16; });
}

struct At {
  std::size_t index;
  DType dtype;
};
std::string name_of(const At& at) {
  const OpCase& c = op_cases()[at.index];
  std::string name = concat(row_of(c.op).name, '_', c.what, '_', at.index, '_', at.dtype);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char ch) { return std::isalnum(ch) == 0; }, '_');
  return name;
}
void PrintTo(const At& at, std::ostream* out) { *out << name_of(at); }

class EveryOp : public ::testing::TestWithParam<At> {};

TEST_P(EveryOp, MatchesItsReference) {
  const OpCase& c = op_cases()[GetParam().index];
  const DType dtype = GetParam().dtype;
  if ((declared(c) & bit(dtype)) == 0) return;  // ThrowsWhatItDoesNotDeclare has it
  NoGradGuard no_grad;
  for (const auto& sizes : c.shapes)
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE(concat(row_of(c.op).name, ' ', c.what, ' ', sizes.front(), ' ', dtype, ' ', name_of(layout)));
      const Inputs in = operands(c, sizes, dtype, layout);
      const Arrays before = stored(in), want = c.reference(before);
      const std::vector<Tensor> got = c.call(in);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(got[i].defined());
        ASSERT_EQ(got[i].sizes(), want[i].sizes);
        std::vector<double> values = want[i].values;
        if (!is_floating(got[i].dtype()))
          for (double& v : values) v = kept_by(got[i].dtype(), v);
        EXPECT_TRUE(close(got[i], values, tolerance_of(c, got[i].dtype()))) << "result " << i;
      }
      for (std::size_t k = 0; k < in.size(); ++k) EXPECT_EQ(to_f64(in[k]), before[k].values) << "operand " << k;
    }
}

TEST_P(EveryOp, ThrowsWhatItDoesNotDeclare) {
  const OpCase& c = op_cases()[GetParam().index];
  const DType dtype = GetParam().dtype;
  const OpRow& row = row_of(c.op);
  if ((row.dtypes & bit(dtype)) != 0) return;
  Inputs in = operands(c, c.shapes.front(), c.operands[0].dtype ? DType::f32 : dtype, Layout::contiguous);
  if (in[0].dtype() != dtype) in[0] = from_list(in[0].sizes(), dtype, to_f64(in[0]));
  expect_error(Kind::unsupported, row.name, [&] { c.call(in); });
}

TEST_P(EveryOp, HasItsGradients) {
  const OpCase& c = op_cases()[GetParam().index];
  const DType dtype = GetParam().dtype;
  if ((declared(c) & bit(dtype)) == 0) return;
  for (const auto& sizes : c.shapes) {
    SCOPED_TRACE(concat(row_of(c.op).name, ' ', c.what, ' ', sizes.front(), ' ', dtype));
    if (c.gradient == Gradient::none || !is_floating(dtype)) {
      const Inputs in = operands(c, sizes, dtype, Layout::contiguous);
      for (std::size_t k = 0; k < in.size(); ++k)
        if (takes_part(c.operands[k]) && is_floating(dtype)) leaf(in[k]);
      for (const Tensor& y : c.call(in)) EXPECT_FALSE(requires_grad(y));
      continue;
    }
    const Inputs first = operands(c, sizes, dtype, Layout::contiguous);
    Inputs exact;  // the same numbers in f64
    for (std::size_t k = 0; k < first.size(); ++k)
      exact.push_back(takes_part(c.operands[k]) ? from_list(first[k].sizes(), DType::f64, to_f64(first[k])) : first[k]);
    Array weights;
    {
      NoGradGuard no_grad;
      weights = weights_for(c.call(exact).front());
    }
    const auto want = gradients(c, exact, weights);
    ASSERT_FALSE(want.empty());
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE(name_of(layout));
      const auto got = gradients(c, operands(c, sizes, dtype, layout), weights);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t k = 0; k < got.size(); ++k) {
        ASSERT_TRUE(got[k].defined()) << k;
        EXPECT_EQ(got[k].dtype(), dtype);
        EXPECT_TRUE(close(got[k], to_f64(want[k]), sum_tolerance(dtype, std::max<std::int64_t>(c.terms, 16)))) << k;
      }
    }
    if (dtype != DType::f64) continue;
    std::vector<Tensor> varied;
    for (std::size_t k = 0; k < first.size(); ++k)
      if (takes_part(c.operands[k])) varied.push_back(first[k]);
    const auto call = [&](const std::vector<Tensor>& some) {
      Inputs in = first;
      for (std::size_t k = 0, next = 0; k < in.size(); ++k)
        if (takes_part(c.operands[k])) in[k] = some[next++];
      return c.call(in).front();
    };
    check_gradient(call, varied, c.terms > 1 ? 3e-6 : 2e-7);
  }
}

std::vector<At> all_cases() {
  std::vector<At> out;
  for (std::size_t i = 0; i < op_cases().size(); ++i)
    for (const DType dtype : kAll) out.push_back({i, dtype});
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryDType, EveryOp, ::testing::ValuesIn(all_cases()),
                         [](const auto& at) { return name_of(at.param); });

TEST(OpTable, EveryOpHasWhatTheListAsksFor) {
  for (const OpRow& row : kOps) {
    SCOPED_TRACE(row.name);
    bool any = false, odd = false, empty = false;
    std::set<Gradient> kinds;
    for (const OpCase& c : op_cases()) {
      if (c.op != row.op) continue;
      any = true;
      EXPECT_TRUE(c.call) << c.what;
      EXPECT_TRUE(c.reference) << c.what;
      kinds.insert(c.gradient);
      for (const auto& sizes : c.shapes) {
        ASSERT_EQ(sizes.size(), c.operands.size()) << c.what;
        const Dims& first = sizes.front();
        odd = odd || std::any_of(first.begin(), first.end(), [](std::int64_t n) { return n > 1 && n % 2 == 1; });
        empty = empty || element_count(first) == 0;
      }
    }
    EXPECT_TRUE(any) << "no case in op_cases_*.cpp: it has no reference and no gradient check";
    EXPECT_TRUE(odd) << "no case of an odd size";
    EXPECT_TRUE(empty) << "no case of size 0";
    EXPECT_EQ(kinds.size(), 1u) << "some of its cases check a gradient, some say that it has none";
    EXPECT_FALSE(kinds.count(Gradient::none) != 0 && row.double_differentiable);
    EXPECT_NE(row.amp, AmpClass::unset);
  }
}

TEST(OpTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const OpRow& row : kOps) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

/// d sum(y^2) / d operand for all that take part, recorded if asked.
std::vector<Tensor> first_gradients(const OpCase& c, const Inputs& in, bool create_graph) {
  backward(F::sum(F::square(c.call(in).front())), {}, {.create_graph = create_graph});
  std::vector<Tensor> out;
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (!takes_part(c.operands[k])) continue;
    out.push_back(grad(in[k]));
    set_grad(in[k], {});
  }
  return out;
}

TEST(OpTable, TwiceDifferentiableAsDeclared) {
  std::set<Op> tried;
  for (const OpCase& c : op_cases()) {
    if (c.gradient == Gradient::none || (declared(c) & bit(DType::f64)) == 0) continue;
    const OpRow& row = row_of(c.op);
    SCOPED_TRACE(concat(row.name, ' ', c.what));
    tried.insert(c.op);
    const Inputs in = operands(c, c.shapes.front(), DType::f64, Layout::contiguous);
    std::vector<Tensor> leaves;
    for (std::size_t k = 0; k < in.size(); ++k)
      if (takes_part(c.operands[k])) leaves.push_back(leaf(in[k]));
    const auto total = [&] {  // of the first gradients, weighted
      double sum = 0;
      for (const Tensor& g : first_gradients(c, in, false)) sum += weighted_sum(g);
      return sum;
    };
    const auto firsts = first_gradients(c, in, true);
    std::vector<Tensor> weights;
    for (const Tensor& g : firsts) {
      ASSERT_TRUE(requires_grad(g));
      weights.push_back(weights_like(g));
    }
    if (!row.double_differentiable) {
      expect_error(Kind::unsupported, "not twice differentiable", [&] { backward(firsts, weights); });
      for (const Tensor& x : leaves) set_grad(x, {});
      continue;
    }
    backward(firsts, weights);
    std::vector<Tensor> seconds;
    for (const Tensor& x : leaves) {
      seconds.push_back(grad(x));
      set_grad(x, {});
    }
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      const auto at = to_f64(leaves[k]);
      std::vector<double> want, got(at.size(), 0.0);
      if (seconds[k].defined()) got = to_f64(seconds[k]);
      constexpr double kStep = 1e-5;
      for (std::size_t i = 0; i < at.size(); ++i) {
        const auto moved = [&](double by) {
          set_element(leaves[k], static_cast<std::int64_t>(i), at[i] + by);
          return total();
        };
        want.push_back((moved(kStep) - moved(-kStep)) / (2 * kStep));
        set_element(leaves[k], static_cast<std::int64_t>(i), at[i]);
      }
      EXPECT_TRUE(close(got, want, {3e-6, 3e-6})) << "operand " << k;
    }
  }
  for (const OpRow& row : kOps)
    EXPECT_TRUE(tried.count(row.op) != 0 || !row.double_differentiable) << row.name << " was not tried";
}

}  // namespace
}  // namespace apex::test
