// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "gradient_bucket.hpp"

#include <algorithm>
#include <map>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/parallel/flatten.hpp"
#include "apex/tensor_ops.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::parallel::detail {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{32} << 20;

bool same_strides(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

/// The parameter's gradient in the parameter's layout (so that all ranks pack alike), or zeros.
Tensor packable_gradient(const Contribution& c) {
  if (!c.used || !grad(c.parameter).defined()) return zeros_like(c.parameter);
  const Tensor g = grad(c.parameter);
  const bool dense = is_non_overlapping_and_dense(c.parameter.sizes(), c.parameter.strides());
  if (dense && same_strides(g, c.parameter)) return g;
  const Tensor like = empty_like(c.parameter);
  if (same_strides(g, like)) return g;
  kernels::copy(like.context(), like.view(), g.view());
  return like;
}

bool can_pack(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    return is_floating(t.dtype()) && is_non_overlapping_and_dense(t.sizes(), t.strides());
  });
}

template <class V>
std::vector<V> views_of(const std::vector<Tensor>& tensors) {
  std::vector<V> views;
  for (const Tensor& t : tensors) views.push_back(t.view());
  return views;
}

}  // namespace

bool capturing(Device device) {
#ifdef APEX_HAS_CUDA
  return device.is_cuda() && cuda::capturing(Context::current(device));
#else
  return device.is_cuda();
#endif
}

void GradientBucket::launch(const std::vector<Contribution>& contributions, const ReduceRule& rule,
                            const dist::ProcessGroup& group, std::string_view label, std::optional<Context> where) {
  rule_ = rule;
  ranks_ = group.size();
  contributions_ = contributions;
  std::int64_t total = 0;
  for (const auto& c : contributions_) {
    gradients_.push_back(packable_gradient(c));
    total += c.parameter.numel();
  }
  if (ranks_ == 1 && rule_.predivide == 1.0 && !rule_.retain) return;  // nothing would change
  const DType dtype = gradients_.front().dtype();
  const Context here = gradients_.front().context();
  // Made here, where it is let go of too: under capture the other stream must end with the collective.
  flat_ = empty({total}, rule_.always_fp32 && is_16bit(dtype) ? DType::f32 : dtype, gradients_.front().device());
#ifdef APEX_HAS_CUDA
  if (where) cuda::order(here, *where);
#endif
  const StreamGuard guard(where.value_or(here));
  kernels::flatten(flat_.context(), flat_.view(), views_of<ConstView>(gradients_), 1.0 / rule_.predivide);
  work_ = group.all_reduce(flat_, dist::ReduceOp::sum, dist::Label(label));
}

void GradientBucket::finish(const std::vector<bool>& wanted) {
  work_.wait();
  if (flat_.defined()) {
    const double scale = rule_.average ? rule_.predivide / ranks_ : 1.0;
    if (rule_.retain) {
      const Tensor reduced = empty({flat_.numel()}, gradients_.front().dtype(), flat_.device());
      const View target = reduced.view();
      kernels::unflatten(reduced.context(), std::span(&target, 1), flat_.view(), scale);
      flat_ = reduced;
      std::int64_t offset = 0;
      for (Tensor& g : gradients_) {
        g = Tensor::from_storage(flat_.storage(), flat_.dtype(), g.sizes(), empty_like(g).strides(), offset);
        offset += g.numel();
      }
    } else {
      kernels::unflatten(flat_.context(), views_of<View>(gradients_), flat_.view(), scale);
      flat_ = Tensor();
    }
  }
  for (std::size_t i = 0; i < gradients_.size(); ++i)
    if (wanted[i] && !gradients_[i].is_same(grad(contributions_[i].parameter)))
      set_grad(contributions_[i].parameter, gradients_[i]);
  gradients_.clear();
}

void broadcast_coalesced(const std::vector<Tensor>& tensors, int root, const dist::ProcessGroup& group,
                         std::string_view label) {
  if (group.size() == 1) return;
  std::map<std::pair<DeviceKind, DType>, std::vector<Tensor>> alike;
  for (const Tensor& t : tensors)
    if (t.numel() > 0) alike[{t.device().kind, t.dtype()}].push_back(t);
  for (const auto& [key, list] : alike)
    for (std::size_t first = 0; first < list.size();) {
      std::size_t last = first, bytes = 0;
      while (last < list.size() && (last == first || bytes + list[last].bytes() <= kBroadcastBytes))
        bytes += list[last++].bytes();
      const std::vector<Tensor> piece(list.begin() + static_cast<std::ptrdiff_t>(first),
                                      list.begin() + static_cast<std::ptrdiff_t>(last));
      first = last;
      if (can_pack(piece)) {  // one launch each way
        const Tensor flat =
            empty({static_cast<std::int64_t>(bytes / size_of(key.second))}, key.second, piece[0].device());
        if (group.rank() == root) kernels::flatten(flat.context(), flat.view(), views_of<ConstView>(piece));
        group.in_stream().broadcast(flat, root, dist::Label(label)).wait();
        if (group.rank() != root) kernels::unflatten(flat.context(), views_of<View>(piece), flat.view());
        continue;
      }
      const Tensor flat = flatten(piece);
      group.in_stream().broadcast(flat, root, dist::Label(label)).wait();
      const auto parts = unflatten(flat, piece);
      if (group.rank() != root)
        for (std::size_t i = 0; i < parts.size(); ++i) kernels::copy(flat.context(), piece[i].view(), parts[i].view());
    }
}

}  // namespace apex::parallel::detail
