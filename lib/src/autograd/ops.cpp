// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/autograd/ops.hpp"

#include <optional>
#include <vector>

#include "apex/nn/functional.hpp"

namespace apex {

namespace {

DType wider_of(DType a, DType b) {
  if (a == b) return a;
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;  // f16 and bf16 hold each other's numbers in f32
}

void promote(std::span<Tensor* const> inputs) {
  std::optional<DType> widest;
  bool differ = false;
  for (const Tensor* input : inputs) {
    if (!input->defined() || !is_floating(input->dtype())) continue;
    differ = differ || (widest && *widest != input->dtype());
    widest = widest ? wider_of(*widest, input->dtype()) : input->dtype();
  }
  if (!differ) return;
  for (Tensor* input : inputs)
    if (input->defined() && is_floating(input->dtype())) *input = nn::functional::cast(*input, *widest);
}

std::vector<std::function<void(std::span<Tensor* const>)>*>& watchers() {
  static std::vector<std::function<void(std::span<Tensor* const>)>*> all;
  return all;
}

}  // namespace

BeforeOps::BeforeOps(std::function<void(std::span<Tensor* const>)> call) : call_(std::move(call)) {
  watchers().push_back(&call_);
}
BeforeOps::~BeforeOps() { std::erase(watchers(), &call_); }

OpScope::OpScope(Op op, std::span<Tensor* const> inputs) : row_(row_of(op)) {
  if (!watchers().empty()) [[unlikely]]
    for (const auto* watcher : std::vector(watchers())) (*watcher)(inputs);  // one may take itself off
  const Tensor& first = *inputs.front();
  if (!first.defined()) fail(Kind::argument, concat(row_.name, ": the first input is an undefined tensor"));
  if ((row_.dtypes & bit(first.dtype())) == 0) throw_unsupported(row_.name, first.dtype());
  for (const Tensor* input : inputs)
    if (input->defined() && input->device() != first.device())
      fail(Kind::argument, concat(row_.name, ": inputs lie on ", first.device(), " and on ", input->device()));
  if (row_.amp == AmpClass::promote) promote(inputs);
}

Tensor OpScope::record(Tensor output, std::vector<Tensor> inputs, std::vector<Saved> saved, BackwardFunction backward,
                       bool takes_terms) const {
  return apex::record(std::move(output), {.name = row_.name,
                                          .inputs = std::move(inputs),
                                          .saved = std::move(saved),
                                          .backward = std::move(backward),
                                          .double_differentiable = row_.double_differentiable,
                                          .takes_terms = takes_terms});
}

}  // namespace apex
