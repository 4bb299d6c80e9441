// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/autograd/ops.hpp"

namespace apex {

OpScope::OpScope(Op op, std::initializer_list<Tensor*> inputs) : row_(row_of(op)) {
  const Tensor& first = **inputs.begin();
  if (!first.defined()) fail(Kind::argument, concat(row_.name, ": the first input is an undefined tensor"));
  if ((row_.dtypes & bit(first.dtype())) == 0) throw_unsupported(row_.name, first.dtype());
  for (const Tensor* input : inputs)
    if (input->defined() && input->device() != first.device())
      fail(Kind::argument, concat(row_.name, ": inputs lie on ", first.device(), " and on ", input->device()));
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
