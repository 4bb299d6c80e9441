// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/flatten.hpp"

#include <algorithm>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/multi_tensor.hpp"

namespace apex {

std::vector<Tensor> unflatten(const Tensor& flat, std::span<const Tensor> like) {
  if (!flat.defined() || flat.dim() != 1 || !flat.is_contiguous())
    fail(Kind::argument, "unflatten: the flat tensor must be contiguous and of one dimension");
  std::int64_t total = 0;
  for (const Tensor& t : like) total += t.numel();
  if (total != flat.numel())
    fail(Kind::argument,
         concat("unflatten: the flat tensor has ", flat.numel(), " elements, the list has ", total, " together"));
  std::vector<Tensor> views;
  std::int64_t offset = flat.storage_offset();
  for (const Tensor& t : like) {
    views.push_back(Tensor::from_storage(flat.storage(), flat.dtype(), t.sizes(), strides_for(t.sizes()), offset));
    offset += t.numel();
  }
  return views;
}

Tensor flatten(std::span<const Tensor> tensors) {
  if (tensors.empty()) fail(Kind::argument, "flatten: the list is empty");
  std::int64_t total = 0;
  for (const Tensor& t : tensors) {
    if (!t.defined()) fail(Kind::argument, "flatten: a tensor of the list is undefined");
    if (t.dtype() != tensors[0].dtype() || t.device() != tensors[0].device())
      fail(Kind::argument, concat("flatten: the list mixes ", tensors[0].dtype(), " on ", tensors[0].device(), " with ",
                                  t.dtype(), " on ", t.device()));
    total += t.numel();
  }
  const Tensor flat = empty({total}, tensors[0].dtype(), tensors[0].device());
  const bool in_order = is_floating(flat.dtype()) &&
                        std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.is_contiguous(); });
  if (in_order) {
    std::vector<ConstView> views;
    for (const Tensor& t : tensors) views.push_back(t.view());
    kernels::flatten(flat.context(), flat.view(), views);
    return flat;
  }
  const auto parts = unflatten(flat, tensors);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].numel() > 0) kernels::copy(flat.context(), parts[i].view(), tensors[i].view());
  return flat;
}

}  // namespace apex
