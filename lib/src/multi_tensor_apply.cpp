// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/multi_tensor_apply.hpp"

#include "apex/kernels/multi_tensor.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::multi_tensor {

namespace {

void check_lists(const char* op, const TensorLists& lists, std::size_t least, std::size_t most) {
  if (lists.size() < least || lists.size() > most)
    fail(Kind::argument,
         concat(op, ": ", lists.size(), " lists; ", least, most > least ? " or more" : "", " are needed"));
  for (std::size_t l = 0; l < lists.size(); ++l) {
    if (lists[l].size() != lists[0].size())
      fail(Kind::argument,
           concat(op, ": list ", l, " has ", lists[l].size(), " tensors, list 0 has ", lists[0].size()));
    for (std::size_t i = 0; i < lists[l].size(); ++i)
      if (!lists[l][i].defined()) fail(Kind::argument, concat(op, ": tensor ", i, " of list ", l, " is undefined"));
  }
}

std::vector<View> views_of(const std::vector<Tensor>& list) {
  std::vector<View> views;
  for (const auto& t : list) views.push_back(t.view());
  return views;
}
std::vector<ConstView> inputs_of(const std::vector<Tensor>& list) {
  std::vector<ConstView> views;
  for (const auto& t : list) views.emplace_back(t.view());
  return views;
}
void raise_versions(const std::vector<Tensor>& list) {
  for (const auto& t : list) t.raise_version();
}

}  // namespace

void scale(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double factor) {
  check_lists("multi_tensor scale", lists, 2, 2);
  if (lists[0].empty()) return;
  kernels::multi_tensor_scale(lists[0][0].context(), flag.view(), views_of(lists[1]), inputs_of(lists[0]), factor,
                              chunk_size);
  raise_versions(lists[1]);
}

void axpby(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double a, double b, int check) {
  check_lists("multi_tensor axpby", lists, 3, 3);
  if (check < -1 || check > 1) fail(Kind::argument, concat("multi_tensor axpby: check ", check, " is not -1, 0 or 1"));
  if (lists[0].empty()) return;
  kernels::multi_tensor_axpby(lists[0][0].context(), flag.view(), views_of(lists[2]), inputs_of(lists[0]),
                              inputs_of(lists[1]), a, b, static_cast<kernels::CheckArgs>(check), chunk_size);
  raise_versions(lists[2]);
}

std::pair<Tensor, Tensor> l2norm(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                 bool per_tensor) {
  check_lists("multi_tensor l2norm", lists, 1, 1);
  const auto count = static_cast<std::int64_t>(lists[0].size());
  const DType dtype = count > 0 ? accum_dtype(lists[0][0].dtype()) : DType::f32;
  const Device device = count > 0 ? lists[0][0].device() : flag.device();
  Tensor norm = zeros({1}, dtype, device), each = per_tensor ? zeros({count}, dtype, device) : Tensor();
  if (count > 0)
    kernels::multi_tensor_l2norm(norm.context(), flag.view(), norm.view(), each.view(), inputs_of(lists[0]),
                                 chunk_size);
  return {norm, each};
}

void sgd(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double weight_decay, double momentum,
         double dampening, double lr, bool nesterov, bool first_run, bool wd_after_momentum, double scale) {
  check_lists("multi_tensor sgd", lists, 3, 4);
  if (lists[0].empty()) return;
  kernels::SgdOptions options;
  options.lr = lr;
  options.momentum = momentum;
  options.dampening = dampening;
  options.weight_decay = weight_decay;
  options.nesterov = nesterov;
  options.wd_after_momentum = wd_after_momentum;
  options.scale = scale;
  options.chunk_size = chunk_size;
  const bool with_momentum = momentum != 0.0;
  const std::vector<std::uint8_t> first(with_momentum ? lists[0].size() : 0, first_run ? 1 : 0);
  kernels::multi_tensor_sgd(
      lists[0][0].context(), flag.view(), views_of(lists[1]), with_momentum ? views_of(lists[2]) : std::vector<View>{},
      lists.size() == 4 ? views_of(lists[3]) : std::vector<View>{}, inputs_of(lists[0]), first, options);
  for (std::size_t l = 1; l < lists.size(); ++l) raise_versions(lists[l]);
}

}  // namespace apex::multi_tensor
