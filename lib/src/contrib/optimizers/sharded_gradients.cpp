// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include "../../parallel/gradient_bucket.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/tensor_ops.hpp"
#include "sharded_state.hpp"

namespace apex::contrib::optimizers {
namespace {

/// The gradient in the memory order the parameter has.
Tensor in_order_of(const Tensor& p, const Tensor& g) {
  bool same = true;
  for (int d = 0; same && d < p.dim(); ++d) same = p.size(d) == 1 || p.strides()[d] == g.strides()[d];
  if (same) return g;
  const Tensor out = empty_like(p, g.dtype());
  kernels::copy(out.context(), out.view(), g.view());
  return out;
}

}  // namespace

// ---- a pass: from the first hook of a backward to the end of it ----

void ShardedOptimizer::Impl::begin_pass() {
  next_bucket = 0;
  launches.clear();
  for (Param& p : params) {
    p.arrived = false;
    // Frozen when its place was made; in this pass the end of backward takes its gradient along.
    if (!p.hooked && requires_grad(p.tensor)) add_hook(index_of.at(p.tensor.id()));
  }
  for (Bucket& b : buckets)
    b.missing =
        std::count_if(b.params.begin(), b.params.end(), [&](std::size_t p) { return requires_grad(params[p].tensor); });
}

void ShardedOptimizer::Impl::add_hook(std::size_t p) {
  params[p].hook = add_post_accumulate_hook(params[p].tensor, [this, p](const Tensor&) { on_gradient(p); });
  params[p].hooked = true;
}

void ShardedOptimizer::Impl::on_gradient(std::size_t p) {
  if (no_sync_depth > 0) return;
  if (!in_backward) {
    in_backward = true;
    queue_backward_callback([this] { end_of_backward(); });
    if (options.overlap_grad_sync) {
      check_unchanged();
      begin_pass();
    }
  }
  if (!options.overlap_grad_sync || std::exchange(params[p].arrived, true)) return;
  std::int64_t last = -1;
  for (const std::size_t f : layout.of_param(static_cast<std::int64_t>(p)))
    if (const std::int64_t b = layout.fragments()[f].bucket; b != last)
      --buckets[static_cast<std::size_t>(last = b)].missing;
  while (next_bucket < layout.buckets() && buckets[static_cast<std::size_t>(next_bucket)].missing == 0)
    launch(next_bucket++);
}

void ShardedOptimizer::Impl::end_of_backward() {
  in_backward = false;
  if (!options.overlap_grad_sync) {
    local = true;
    return;
  }
  launch_rest();
}

/// Every pass hands over every bucket, so that all ranks issue the same collectives whoever had gradients.
void ShardedOptimizer::Impl::launch_rest() {
  while (next_bucket < layout.buckets()) launch(next_bucket++);
  for (std::size_t p = 0; p < params.size(); ++p)
    if (layout.of_param(static_cast<std::int64_t>(p)).empty()) set_grad(params[p].tensor, {});  // in no bucket
  synced = true;
  local = false;
}

void ShardedOptimizer::Impl::launch(std::int64_t number) {
  NoGradGuard no_grad;
  Bucket& b = buckets[static_cast<std::size_t>(number)];
  collect(b);  // of an earlier pass
  pack(number);
  launches.push_back({static_cast<int>(number), Clock::now(), {}});
  norm = Tensor();
  b.in_flight = true;
  if (one_rank() && !(wire.full_reduce && redundant)) {
    b.reduced = options.contiguous_grad_buffer ? clone(b.gradients) : b.gradients;
    b.reducing = {};
    return;
  }
  if (wire.full_reduce) {
    b.reducing = whole.all_reduce(b.gradients, dist::ReduceOp::sum, concat("gradients ", number));
    note_work(b.reducing);
    return;
  }
  b.reduced = empty({layout.shard()}, grad_sync, device());
  b.reducing = distributed.reduce_scatter(b.reduced, b.gradients, dist::ReduceOp::sum, concat("gradients ", number));
  note_work(b.reducing);
}

/// For last_timings(). A graph's collectives tell no times, and what it made must be let go of.
void ShardedOptimizer::Impl::note_work(const dist::Work& work) {
  if (!parallel::detail::capturing(device())) launches.back().work = work;
}

/// Fills the bucket from `.grad`s in one pass over memory, and lets go of those that are in no later bucket.
void ShardedOptimizer::Impl::pack(std::int64_t number) {
  Bucket& b = buckets[static_cast<std::size_t>(number)];
  const Context ctx = context();
  std::vector<Tensor> ordered(b.params.size());
  for (std::size_t i = 0; i < b.params.size(); ++i) {
    const Tensor& p = params[b.params[i]].tensor;
    const Tensor g = grad(p);
    if (g.defined()) ordered[i] = in_order_of(p, g);
  }
  const auto gradient_of = [&](std::size_t param) -> const Tensor& {
    return ordered[static_cast<std::size_t>(std::find(b.params.begin(), b.params.end(), param) - b.params.begin())];
  };
  if (options.contiguous_grad_buffer) {
    for (const std::size_t f : layout.of_bucket(number)) {
      const Fragment& fragment = layout.fragments()[f];
      const Tensor& g = gradient_of(static_cast<std::size_t>(fragment.param));
      const View place = slice(b.gradients, fragment.in_bucket);
      if (!g.defined())
        kernels::fill(ctx, place, 0.0);
      else if (g.storage() != b.gradients.storage())
        kernels::copy(ctx, place, slice(g, fragment.in_param));
    }
  } else {
    b.gradients = empty({layout.bucket_size()}, grad_sync, device());
    // Zeros for the gaps between fragments and for what has no gradient: one tensor, as long as the longest of them.
    std::int64_t zeros_needed = 0, end = 0;
    const auto plan = [&](auto&& add) {
      end = 0;
      for (const std::size_t f : layout.of_bucket(number)) {
        const Fragment& fragment = layout.fragments()[f];
        if (fragment.in_bucket.begin > end) add(Tensor(), Range{0, fragment.in_bucket.begin - end});
        const Tensor& g = gradient_of(static_cast<std::size_t>(fragment.param));
        add(g, g.defined() ? fragment.in_param : Range{0, fragment.in_bucket.size()});
        end = fragment.in_bucket.end;
      }
      if (end < layout.bucket_size()) add(Tensor(), Range{0, layout.bucket_size() - end});
    };
    plan([&](const Tensor& g, const Range& range) {
      if (!g.defined()) zeros_needed = std::max(zeros_needed, range.size());
    });
    const Tensor nothing = zeros({zeros_needed}, grad_sync, device());
    std::vector<ConstView> pieces;
    plan([&](const Tensor& g, const Range& range) { pieces.push_back(slice(g.defined() ? g : nothing, range)); });
    kernels::flatten(ctx, b.gradients.view(), pieces);
  }
  if (own_factor.defined()) {
    const Tensor by = empty({1}, grad_sync, device());
    kernels::copy(ctx, by.view(), own_factor.view());
    kernels::binary(ctx, b.gradients.view(), b.gradients.view(), by.view(), kernels::BinaryOp::mul);
  }
  for (const std::size_t p : b.params)
    if (layout.fragments()[layout.of_param(static_cast<std::int64_t>(p)).back()].bucket == number)
      set_grad(params[p].tensor, {});
}

/// Waits for a bucket and adds it to the shard of gradients.
void ShardedOptimizer::Impl::collect(Bucket& b) {
  if (!b.in_flight) return;
  b.reducing.wait();
  if (redundant && !wire.full_reduce)
    redundant.all_reduce(b.reduced, dist::ReduceOp::sum, "gradients of the copies").wait();
  take_up(b);
}

void ShardedOptimizer::Impl::take_up(Bucket& b) {
  if (!b.reduced.defined()) b.reduced = clone(views::narrow(b.gradients, 0, rank() * layout.shard(), layout.shard()));
  if (!b.gradient_shard.defined())
    b.gradient_shard = b.reduced;
  else
    kernels::accumulate(context(), b.gradient_shard.view(), b.reduced.view());
  b.reduced = Tensor();
  b.reducing = {};
  b.in_flight = false;
  if (!options.contiguous_grad_buffer) b.gradients = Tensor();
}

void ShardedOptimizer::Impl::grad_sync_all() {
  NoGradGuard no_grad;
  adopt_new_params();
  if (in_backward) fail(Kind::state, concat(class_name, ": gradients cannot be synchronised inside backward"));
  check_unchanged();
  if (!synced || local) {
    begin_pass();
    if (wire.clip_own > 0) clip_own_gradients();
    launch_rest();
    own_factor = Tensor();
  }
  if (redundant && !wire.full_reduce)
    for (Bucket& b : buckets) {
      if (!b.in_flight) continue;
      b.reducing.wait();
      b.reducing = redundant.all_reduce(b.reduced, dist::ReduceOp::sum, "gradients of the copies");
    }
  for (Bucket& b : buckets) {
    if (!b.in_flight) continue;
    b.reducing.wait();
    take_up(b);
  }
}

/// own_factor = min(1, clip / (inv_scale * norm of this rank's gradients + 1e-6))
void ShardedOptimizer::Impl::clip_own_gradients() {
  const Context ctx = context();
  std::map<DType, std::vector<ConstView>> by_dtype;
  for (const Param& p : params)
    if (const Tensor g = grad(p.tensor); g.defined() && g.numel() > 0)
      by_dtype[g.dtype()].push_back(slice(g, {0, g.numel()}));
  const Tensor flag = zeros({1}, DType::i32, device()), square = zeros({1}, DType::f64, device());
  for (const auto& [dtype, views] : by_dtype) {
    const Tensor part = zeros({1}, accum_dtype(dtype), device());
    kernels::multi_tensor_l2norm(ctx, flag.view(), part.view(), {}, views);
    const Tensor wide = empty({1}, DType::f64, device());
    kernels::copy(ctx, wide.view(), part.view());
    kernels::unary(ctx, wide.view(), wide.view(), kernels::UnaryOp::square);
    kernels::accumulate(ctx, square.view(), wide.view());
  }
  kernels::unary(ctx, square.view(), square.view(), kernels::UnaryOp::sqrt);
  const Tensor factor = empty({1}, DType::f32, device()), one = ones({1}, DType::f32, device());
  kernels::copy(ctx, factor.view(), square.view());
  if (pass_inv_scale.defined())
    kernels::binary(ctx, factor.view(), factor.view(), views::reshape(pass_inv_scale, {1}).view(),
                    kernels::BinaryOp::mul);
  kernels::scale_shift(ctx, factor.view(), factor.view(), 1.0, 1e-6);
  kernels::unary(ctx, factor.view(), factor.view(), kernels::UnaryOp::reciprocal);
  kernels::scale_shift(ctx, factor.view(), factor.view(), wire.clip_own);
  kernels::binary(ctx, factor.view(), factor.view(), one.view(), kernels::BinaryOp::minimum);
  own_factor = factor;
}

void ShardedOptimizer::Impl::forget_gradients() {
  for (Bucket& b : buckets) {
    b.reducing.wait();
    b.in_flight = false;
    b.reduced = b.gradient_shard = Tensor();
    b.reducing = {};
    if (!options.contiguous_grad_buffer) b.gradients = Tensor();
  }
  in_backward = synced = local = false;
  stage = Stage::ready;
  norm = found_inf = Tensor();
  if (scale.defined()) kernels::fill(context(), scale.view(), 1.0);
}

// ---- norm and factors ----

/// 2-norm of the averaged gradients of these local parts and their like on other ranks.
Tensor ShardedOptimizer::Impl::norm_of(const std::vector<std::size_t>& which) {
  const Context ctx = context();
  const Tensor flag = zeros({1}, DType::i32, device()), part = zeros({1}, DType::f32, device());
  std::vector<ConstView> views;
  for (const std::size_t l : which) {
    const Local& local_part = locals[l];
    views.push_back(
        slice(buckets[static_cast<std::size_t>(local_part.bucket)].gradient_shard, local_part.part.in_shard));
  }
  if (!views.empty()) kernels::multi_tensor_l2norm(ctx, flag.view(), part.view(), {}, views);
  const Tensor square = empty({1}, DType::f64, device()), result = empty({1}, DType::f32, device());
  kernels::copy(ctx, square.view(), part.view());
  kernels::unary(ctx, square.view(), square.view(), kernels::UnaryOp::square);
  if (!one_rank()) distributed.in_stream().all_reduce(square, dist::ReduceOp::sum, "norm of the gradients").wait();
  kernels::unary(ctx, square.view(), square.view(), kernels::UnaryOp::sqrt);
  kernels::scale_shift(ctx, square.view(), square.view(), factor());
  kernels::copy(ctx, result.view(), square.view());
  return result;
}

/// f32 1 where `value` is not finite, else 0.
Tensor ShardedOptimizer::Impl::finite_flag(const Tensor& value) {
  const Context ctx = context();
  const Tensor product = empty({1}, DType::f32, device()), differs = empty({1}, DType::boolean, device());
  kernels::scale_shift(ctx, product.view(), value.view(), 0.0);  // NaN unless finite
  kernels::compare(ctx, differs.view(), product.view(), product.view(), kernels::CompareOp::ne);
  kernels::copy(ctx, product.view(), differs.view());
  return product;
}

ShardedOptimizer::NoSync::NoSync(ShardedOptimizer& optimizer) : optimizer_(&optimizer) {
  ++optimizer.impl_->no_sync_depth;
  optimizer.impl_->local = true;
}
ShardedOptimizer::NoSync::~NoSync() {
  if (optimizer_ != nullptr) --optimizer_->impl_->no_sync_depth;
}

void ShardedOptimizer::grad_sync() { impl_->grad_sync_all(); }

Tensor ShardedOptimizer::grad_buffer_view(const Tensor& param) const {
  if (!impl_->options.contiguous_grad_buffer)
    fail(Kind::state, concat(impl_->class_name, "::grad_buffer_view: needs contiguous_grad_buffer"));
  const auto found = impl_->index_of.find(param.id());
  if (found == impl_->index_of.end())
    fail(Kind::argument, concat(impl_->class_name, "::grad_buffer_view: the tensor is no parameter of this optimizer"));
  const auto& fragments = impl_->layout.of_param(static_cast<std::int64_t>(found->second));
  if (fragments.empty()) return empty_like(param, impl_->grad_sync);
  const Fragment& f = impl_->layout.fragments()[fragments.front()];
  const Tensor& bucket = impl_->buckets[static_cast<std::size_t>(f.bucket)].gradients;
  return views::as_strided(bucket, param.sizes(), impl_->params[found->second].strides,
                           bucket.storage_offset() + f.in_bucket.begin);
}

void ShardedOptimizer::zero_grad(std::optional<bool> set_to_none) {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.forget_gradients();
  for (const auto& p : i.params) set_grad(p.tensor, {});
  if (!i.options.contiguous_grad_buffer || i.buckets.empty()) return;
  for (auto& b : i.buckets) kernels::fill(i.context(), b.gradients.view(), 0.0);
  if (set_to_none.value_or(false)) return;
  for (const auto& p : i.params)
    if (p.dtype == i.grad_sync && requires_grad(p.tensor)) set_grad(p.tensor, grad_buffer_view(p.tensor));
}

Tensor ShardedOptimizer::grad_norm(const std::vector<Tensor>& params) {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.grad_sync_all();
  std::vector<bool> wanted(i.params.size(), params.empty());
  for (const Tensor& p : params) {
    const auto found = i.index_of.find(p.id());
    if (found == i.index_of.end())
      fail(Kind::argument, concat(i.class_name, "::grad_norm: a tensor is no parameter of this optimizer"));
    wanted[found->second] = true;
  }
  std::vector<std::size_t> which;
  for (std::size_t l = 0; l < i.locals.size(); ++l)
    if (wanted[i.locals[l].param]) which.push_back(l);
  Tensor plain;
  if (params.empty()) {
    if (!i.norm.defined()) i.norm = i.norm_of(which);
    plain = i.norm;
  } else {
    plain = i.norm_of(which);
  }
  const Tensor result = empty({1}, DType::f32, i.device());
  kernels::binary(i.context(), result.view(), plain.view(), i.scale.view(), kernels::BinaryOp::mul);
  return result;
}

Tensor ShardedOptimizer::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0) || !std::isfinite(max_norm))
    fail(Kind::argument, concat(impl_->class_name, "::clip_grad_norm: max_norm ", max_norm, " is not positive"));
  const Tensor norm = grad_norm();
  NoGradGuard no_grad;
  Impl& i = *impl_;
  const Context ctx = i.context();
  const Tensor by = empty({1}, DType::f32, i.device()), one = ones({1}, DType::f32, i.device());
  kernels::scale_shift(ctx, by.view(), norm.view(), 1.0, 1e-6);
  kernels::unary(ctx, by.view(), by.view(), kernels::UnaryOp::reciprocal);
  kernels::scale_shift(ctx, by.view(), by.view(), max_norm);
  kernels::binary(ctx, by.view(), by.view(), one.view(), kernels::BinaryOp::minimum);
  kernels::binary(ctx, i.scale.view(), i.scale.view(), by.view(), kernels::BinaryOp::mul);
  return norm;
}

Tensor ShardedOptimizer::unscale_grads(const Tensor& inv_scale) {
  Impl& i = *impl_;
  if (!inv_scale.defined() || inv_scale.dtype() != DType::f32 || inv_scale.numel() != 1)
    fail(Kind::argument, concat(i.class_name, "::unscale_grads: inv_scale must be one element of f32"));
  if (i.stage != Impl::Stage::ready)
    fail(Kind::state, concat(i.class_name, "::unscale_grads: gradients were ",
                             i.stage == Impl::Stage::unscaled ? "unscaled already" : "used by a step already",
                             " since zero_grad()"));
  const Tensor norm = grad_norm();
  NoGradGuard no_grad;
  i.found_inf = i.finite_flag(norm);
  kernels::binary(i.context(), i.scale.view(), i.scale.view(), views::reshape(inv_scale, {1}).view(),
                  kernels::BinaryOp::mul);
  i.stage = Impl::Stage::unscaled;
  return i.found_inf;
}

const Tensor& ShardedOptimizer::grad_scale() const { return impl_->scale; }

std::vector<ShardedOptimizer::BucketTiming> ShardedOptimizer::last_timings() const {
  std::vector<BucketTiming> timings;
  for (const auto& l : impl_->launches) {
    while (!l.work.wait_host(1.0)) {  // the watchdog ends a wait for a rank that never comes
    }
    const auto finished = l.work.finished().value_or(l.at);
    timings.push_back({l.bucket, l.at, finished == Clock::time_point{} ? l.at : finished});
  }
  return timings;
}

}  // namespace apex::contrib::optimizers
