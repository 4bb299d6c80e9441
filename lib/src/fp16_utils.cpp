// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/fp16_utils.hpp"

#include <unordered_set>

#include "apex/autograd.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"

namespace apex::fp16_utils {

namespace {

void check_dtype(const char* what, DType dtype) {
  if (!is_floating(dtype)) fail(Kind::argument, concat(what, ": ", dtype, " is no floating type"));
}

void cast_data(const Tensor& t, DType dtype) {
  if (is_floating(t.dtype()) && t.dtype() != dtype) t.set_data(nn::functional::cast(t.detach(), dtype));
}

/// Own tensors of `module` but those in `kept`.
void convert(const nn::Module& module, DType dtype, const std::unordered_set<const void*>& kept) {
  NoGradGuard no_grad;
  for (const auto& [name, p] : module.own_parameters()) {
    if (kept.contains(p.id())) continue;
    cast_data(p, dtype);
    if (const Tensor gradient = grad(p); gradient.defined()) cast_data(gradient, dtype);
  }
  for (const auto& [name, buffer] : module.own_buffers())
    if (!kept.contains(buffer.id())) cast_data(buffer, dtype);
}

bool is_kept(const nn::Module& module) {
  const auto* norm = dynamic_cast<const nn::BatchNorm*>(&module);
  return norm != nullptr && norm->options().affine;
}

}  // namespace

void convert_module(nn::Module& module, DType dtype) {
  check_dtype("convert_module", dtype);
  convert(module, dtype, {});
}

void convert_network(nn::Module& network, DType dtype) {
  check_dtype("convert_network", dtype);
  const auto modules = network.named_modules();
  std::unordered_set<const void*> kept;
  for (const auto& [name, module] : modules) {
    if (!is_kept(*module)) continue;
    for (const auto& entry : module->own_parameters()) kept.insert(entry.tensor.id());
    for (const auto& entry : module->own_buffers()) kept.insert(entry.tensor.id());
  }
  for (const auto& [name, module] : modules) convert(*module, dtype, kept);
}

}  // namespace apex::fp16_utils
