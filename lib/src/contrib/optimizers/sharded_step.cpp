// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>

#include "../../parallel/gradient_bucket.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/tensor_ops.hpp"
#include "sharded_state.hpp"

namespace apex::contrib::optimizers {
namespace {

View element(const Tensor& t, std::int64_t i) { return slice(t, {i, i + 1}); }

/// Largest value that a scaled state is brought to: half of what f16 holds. bf16 has the range of f32, so that a scale
/// would gain nothing and could leave that range itself; there it is 1.
constexpr double kHalfF16 = 32752.0;

}  // namespace

// ---- update ----

/// By group, what the op needs of the given local parts. `keep` holds temporaries until the op was called.
std::vector<ShardedOptimizer::Parts> ShardedOptimizer::Impl::parts_of(const std::vector<std::size_t>& which,
                                                                      std::vector<Tensor>& keep) {
  std::vector<Parts> parts(self.groups().size());
  for (const std::size_t l : which) {
    const Local& local_part = locals[l];
    const Param& param = params[local_part.param];
    Bucket& b = buckets[static_cast<std::size_t>(local_part.bucket)];
    const Range& in_shard = local_part.part.in_shard;
    if (!requires_grad(param.tensor)) continue;  // frozen; finish_gather leaves it alone too
    Parts& to = parts[param.group];
    const auto wide = [&](int kind) {
      keep.push_back(empty({in_shard.size()}, DType::f32, device()));
      load_scaled({l}, kind, {keep.back().view()});
      return keep.back().view();
    };
    if (options.store_param_remainders) {
      to.params.push_back(slice(param.tensor, local_part.part.in_param));
      to.remainders.push_back(slice(b.remainders, {2 * in_shard.begin, 2 * in_shard.end}));
    } else if (scaled()) {
      to.params.push_back(wide(0));
    } else if (options.store_params) {
      to.params.push_back(slice(b.params_shard, in_shard));
    } else if (param.dtype == options.dtype && !options.contiguous_param_buffer) {
      to.params.push_back(slice(param.tensor, local_part.part.in_param));  // what is gathered replaces it
    } else {
      keep.push_back(empty({in_shard.size()}, options.dtype, device()));
      kernels::copy(context(), keep.back().view(), slice(param.tensor, local_part.part.in_param));
      to.params.push_back(keep.back().view());
    }
    to.exp_avg.push_back(scaled() ? wide(1) : slice(b.exp_avg, in_shard));
    to.exp_avg_sq.push_back(scaled() ? wide(2) : slice(b.exp_avg_sq, in_shard));
    // Bf16 halves in a contiguous buffer are what is gathered.
    const bool in_place =
        gathers_stored() || wire.e5m2 || (options.store_param_remainders && options.contiguous_param_buffer);
    if (!in_place) to.copies.push_back(slice(b.own, in_shard));
    to.grads.push_back(slice(b.gradient_shard, in_shard));
    to.steps.push_back(element(steps, static_cast<std::int64_t>(l)));
    to.param_index.push_back(param.number);
  }
  return parts;
}

void ShardedOptimizer::Impl::update(const StepScaling& scaling) {
  for (Bucket& b : buckets) {
    if (gathers_stored() || wire.e5m2)
      b.own = b.params_shard;
    else if (!options.contiguous_param_buffer)
      b.own = empty({layout.shard()}, param_sync, device());
  }
  std::vector<std::vector<std::size_t>> rounds;
  if (scaled()) {  // one bucket at a time is wide
    for (const Bucket& b : buckets) rounds.push_back(b.locals);
  } else {
    rounds.emplace_back(locals.size());
    std::iota(rounds.back().begin(), rounds.back().end(), std::size_t{0});
  }
  for (const auto& round : rounds) {
    std::vector<Tensor> keep;
    const auto parts = parts_of(round, keep);
    self.update_parts(parts, scaling, factor());
    if (wire.e5m2) encode_own();
    if (!scaled()) continue;
    std::array<std::vector<View>, 3> values;  // in the order of `round`, which parts_of split by group
    std::vector<std::size_t> next(parts.size()), stored;
    for (const std::size_t l : round) {
      if (!requires_grad(params[locals[l].param].tensor)) continue;
      stored.push_back(l);
      const std::size_t g = params[locals[l].param].group, at = next[g]++;
      values[0].push_back(parts[g].params[at]);
      values[1].push_back(parts[g].exp_avg[at]);
      values[2].push_back(parts[g].exp_avg_sq[at]);
    }
    const Tensor flag = skip_flag();
    for (int kind = 0; kind < 3; ++kind)
      store_scaled(stored, kind, values[static_cast<std::size_t>(kind)], flag.view());
  }
}

/// What is gathered as e5m2: made after the update, which writes floating copies only.
void ShardedOptimizer::Impl::encode_own() {
  std::vector<View> to;
  std::vector<ConstView> from;
  for (Bucket& b : buckets) {
    b.own = empty({layout.shard()}, DType::u8, device());
    to.push_back(b.own.view());
    from.push_back(b.params_shard.view());
  }
  kernels::multi_tensor_maybe_cast(context(), never.view(), to, from);
}

/// Values of local parts in f32 from what is stored.
void ShardedOptimizer::Impl::load_scaled(const std::vector<std::size_t>& which, int kind,
                                         const std::vector<View>& values) {
  const Context ctx = context();
  for (std::size_t i = 0; i < which.size(); ++i) {
    const Local& l = locals[which[i]];
    kernels::copy(ctx, values[i],
                  slice(state_tensor(buckets[static_cast<std::size_t>(l.bucket)], kind), l.part.in_shard));
    kernels::binary(ctx, values[i], values[i],
                    element(scales, kind * scales.size(1) + static_cast<std::int64_t>(which[i])),
                    kernels::BinaryOp::mul);
  }
}

/// Stores f32 values (which it overwrites) under a new scale for each, unless the flag is set.
void ShardedOptimizer::Impl::store_scaled(const std::vector<std::size_t>& which, int kind,
                                          const std::vector<View>& values, View flag) {
  if (which.empty()) return;
  const Context ctx = context();
  const auto n = static_cast<std::int64_t>(which.size());
  const bool f16 = options.dtype == DType::f16;
  const Tensor fresh = ones({n}, DType::f32, device()), inverse = ones({n}, DType::f32, device());
  if (f16) {
    const Tensor unused = zeros({1}, DType::i32, device()), all = empty({1}, DType::f32, device());
    const Tensor normal = full({1}, 1.1754943508222875e-38, DType::f32, device());
    const Tensor none = zeros({1}, DType::f32, device()), usable = empty({n}, DType::boolean, device());
    const std::vector<ConstView> read(values.begin(), values.end());
    kernels::multi_tensor_max_norm(ctx, unused.view(), all.view(), fresh.view(), read);
    kernels::scale_shift(ctx, fresh.view(), fresh.view(), 1.0 / kHalfF16);
    kernels::unary(ctx, inverse.view(), fresh.view(), kernels::UnaryOp::reciprocal);
    kernels::compare(ctx, usable.view(), fresh.view(), normal.view(), kernels::CompareOp::ge);
    kernels::where(ctx, inverse.view(), usable.view(), inverse.view(), none.view());
  }
  std::vector<View> stored, scale_places;
  std::vector<ConstView> ready, new_scales;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t at = which[static_cast<std::size_t>(i)];
    const View& value = values[static_cast<std::size_t>(i)];
    const Local& l = locals[at];
    if (f16) kernels::binary(ctx, value, value, element(inverse, i), kernels::BinaryOp::mul);
    stored.push_back(slice(state_tensor(buckets[static_cast<std::size_t>(l.bucket)], kind), l.part.in_shard));
    ready.push_back(value);
    scale_places.push_back(element(scales, kind * scales.size(1) + static_cast<std::int64_t>(at)));
    new_scales.push_back(element(fresh, i));
  }
  kernels::multi_tensor_maybe_cast(ctx, flag, stored, ready);
  kernels::multi_tensor_maybe_cast(ctx, flag, scale_places, new_scales);
}

/// i32, one element, not 0 when the step under way is skipped.
Tensor ShardedOptimizer::Impl::skip_flag() {
  if (!found_inf.defined()) return never;
  const Tensor flag = empty({1}, DType::i32, device()), differs = empty({1}, DType::boolean, device());
  const Tensor zero = zeros({1}, DType::f32, device());
  kernels::compare(context(), differs.view(), found_inf.view(), zero.view(), kernels::CompareOp::ne);
  kernels::copy(context(), flag.view(), differs.view());
  return flag;
}

// ---- parameters: gathered from all ranks, and written back ----

void ShardedOptimizer::Impl::start_gather(std::int64_t number) {
  Bucket& b = buckets[static_cast<std::size_t>(number)];
  if (one_rank()) {
    if (!options.contiguous_param_buffer) b.gathered = b.own;
    b.gathering = {};
  } else {
    if (!options.contiguous_param_buffer) b.gathered = empty({layout.bucket_size()}, param_sync, device());
    b.gathering = distributed.all_gather(b.gathered, b.own, concat("parameters ", number));
  }
  b.gathering_now = true;
  ++gathers_open;
}

void ShardedOptimizer::Impl::finish_gather(Bucket& b) {
  if (!b.gathering_now) return;
  b.gathering.wait();
  if (!options.contiguous_param_buffer) {
    std::map<DType, std::pair<std::vector<View>, std::vector<ConstView>>> lists;  // a list has one dtype
    const auto number = static_cast<std::int64_t>(&b - buckets.data());
    for (const std::size_t f : layout.of_bucket(number)) {
      const Fragment& fragment = layout.fragments()[f];
      const Param& param = params[static_cast<std::size_t>(fragment.param)];
      if (!unpack_frozen && !requires_grad(param.tensor)) continue;
      auto& [to, from] = lists[param.dtype];
      to.push_back(slice(param.tensor, fragment.in_param));
      from.push_back(slice(b.gathered, fragment.in_bucket));
    }
    for (const auto& [dtype, list] : lists)
      kernels::multi_tensor_maybe_cast(context(), unpack_flag.view(), list.first, list.second);
    b.gathered = b.own = Tensor();
  }
  for (const std::size_t p : b.params) params[p].tensor.raise_version();
  b.gathering = {};
  b.gathering_now = false;
  --gathers_open;
}

/// The last bucket holds the parameters that forward reads first. @param flag  not 0 leaves parameters as they are
void ShardedOptimizer::Impl::gather(bool overlap, const Tensor& flag) {
  unpack_flag = flag;
  stepper = std::this_thread::get_id();
  if (overlap) {
    for (std::int64_t b = layout.buckets() - 1; b >= 0; --b) start_gather(b);
    if (gathers_open > 0) watcher.emplace([this](std::span<Tensor* const> inputs) { before_op(inputs); });
    return;
  }
  std::int64_t started = layout.buckets();
  for (std::int64_t b = layout.buckets() - 1; b >= 0; --b) {
    while (started > 0 && started > b - options.pipeline_size + 1) start_gather(--started);
    finish_gather(buckets[static_cast<std::size_t>(b)]);
  }
  unpack_flag = Tensor();
}

void ShardedOptimizer::Impl::before_op(std::span<Tensor* const> inputs) {
  if (gathers_open == 0 || std::this_thread::get_id() != stepper) return;
  NoGradGuard no_grad;
  for (const Tensor* input : inputs) {
    const auto found = input->defined() ? index_of.find(input->id()) : index_of.end();
    if (found == index_of.end()) continue;
    for (const std::size_t f : layout.of_param(static_cast<std::int64_t>(found->second)))
      finish_gather(buckets[static_cast<std::size_t>(layout.fragments()[f].bucket)]);
  }
  // `watcher` stays until param_sync(): it is the caller here.
}

void ShardedOptimizer::Impl::finish_params() {
  NoGradGuard no_grad;
  for (auto b = buckets.rbegin(); b != buckets.rend(); ++b) finish_gather(*b);
  unpack_flag = Tensor();
  watcher.reset();
}

void ShardedOptimizer::synchronize() const {
  impl_->finish_params();
  if (!std::exchange(impl_->gather_due, false)) return;
  NoGradGuard no_grad;
  Impl& i = *impl_;
  for (auto& b : i.buckets) {  // a later step that was skipped may have left nothing in `own`
    if (i.gathers_stored() || i.wire.e5m2) continue;
    b.own = empty({i.layout.shard()}, i.param_sync, i.device());
    kernels::copy(i.context(), b.own.view(), b.params_shard.view());
  }
  if (i.wire.e5m2) i.encode_own();
  i.gather(false, i.never);
}

void ShardedOptimizer::update(const Bucket&, const apex::optimizers::ParamGroup&) {
  fail(Kind::state, concat(type(), ": steps are not made bucket by bucket"));
}

void ShardedOptimizer::update_all(const StepScaling& scaling) { impl_->update(scaling); }

void ShardedOptimizer::step(const StepScaling& scaling) {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.pass_inv_scale = scaling.inv_scale;
  i.grad_sync_all();
  i.pass_inv_scale = Tensor();
  i.finish_params();
  if (i.stage == Impl::Stage::ready) {
    if (scaling.inv_scale.defined())
      unscale_grads(scaling.inv_scale);
    else if (scaling.found_inf.defined() || checks_always())
      i.found_inf = i.finite_flag(grad_norm());
  }
  if (scaling.found_inf.defined()) {
    const Tensor theirs = empty({1}, DType::f32, i.device());
    kernels::copy(i.context(), theirs.view(), views::reshape(scaling.found_inf, {1}).view());
    i.whole.in_stream().all_reduce(theirs, dist::ReduceOp::max, "found_inf").wait();
    if (!i.found_inf.defined()) i.found_inf = zeros({1}, DType::f32, i.device());
    kernels::binary(i.context(), i.found_inf.view(), i.found_inf.view(), theirs.view(), kernels::BinaryOp::maximum);
  }
  Optimizer::step(StepScaling{.found_inf = i.found_inf, .inv_scale = i.scale});
  i.stage = Impl::Stage::stepped;
  i.loaded_masters.clear();
  if (i.device().is_cpu() && last_step_skipped()) return;  // nothing was written
  if (i.wire.gather_late)
    i.gather_due = true;
  else
    // What a graph starts it must end.
    i.gather(i.options.overlap_param_sync && !parallel::detail::capturing(i.device()), i.skip_flag());
}

}  // namespace apex::contrib::optimizers
