// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <exception>
#include <sstream>
#include <utility>

#include "../../parallel/gradient_bucket.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/tensor_ops.hpp"
#include "sharded_state.hpp"

namespace apex::contrib::optimizers {
namespace {

constexpr double kLeastFill = 0.7;
constexpr double kLeastVain = 1048576;  // bytes of a state tensor, over all ranks; less is not worth a word

bool is_state_dtype(DType d) { return d == DType::f32 || is_16bit(d); }

void check_options(const ShardingOptions& o, const char* class_name, bool takes_scaled) {
  const auto refuse = [&](const std::string& why) { fail(Kind::argument, concat(class_name, ": ", why)); };
  const DType grad_sync = o.grad_sync_dtype.value_or(o.dtype), param_sync = o.param_sync_dtype.value_or(o.dtype);
  for (const auto& [name, dtype] :
       {std::pair{"dtype", o.dtype}, {"grad_sync_dtype", grad_sync}, {"param_sync_dtype", param_sync}})
    if (!is_state_dtype(dtype)) refuse(concat(name, ' ', dtype, " is none of f32, f16 and bf16"));
  if (o.pipeline_size < 1) refuse(concat("pipeline_size ", o.pipeline_size, " is not positive"));
  if (o.store_param_remainders) {
    if (o.store_params) refuse("store_param_remainders takes the place of store_params; set that to false");
    if (o.dtype != DType::f32 || param_sync != DType::bf16)
      refuse("store_param_remainders needs dtype f32 and param_sync_dtype bf16");
  }
  if (o.with_scaled_states) {
    if (!takes_scaled) refuse("with_scaled_states is not supported");
    if (!o.store_params || o.store_param_remainders) refuse("with_scaled_states needs store_params and no remainders");
    if (!is_16bit(o.dtype)) refuse(concat("with_scaled_states needs dtype f16 or bf16, not ", o.dtype));
    if (!is_16bit(param_sync))
      refuse(concat("with_scaled_states needs a param_sync_dtype of 16 bits, not ", param_sync));
  }
  if (o.nccl_ub) {
    if (!o.contiguous_grad_buffer) refuse("nccl_ub needs contiguous_grad_buffer");
    fail(Kind::unsupported, concat(class_name, ": nccl_ub needs the nccl_allocator, which this version has not"));
  }
  static_cast<void>(shard_size(grad_sync, 1, o.bucket_cap_mb));
}

dist::ProcessGroup ddp_channel(const dist::ProcessGroup& group) { return group.channel(dist::Purpose::ddp); }

}  // namespace

ShardedOptimizer::Impl::Impl(ShardedOptimizer& s, ShardingOptions o, const char* name, const ShardedOptimizerWire& w)
    : self(s),
      options(std::move(o)),
      class_name(name),
      wire(w),
      grad_sync(options.grad_sync_dtype.value_or(options.dtype)),
      param_sync(w.e5m2 ? DType::u8 : options.param_sync_dtype.value_or(options.dtype)) {
  whole = ddp_channel(options.process_group ? options.process_group : dist::ProcessGroup::world());
  distributed = options.distributed_group ? ddp_channel(options.distributed_group) : whole;
  if (options.redundant_group && options.redundant_group.size() > 1) redundant = ddp_channel(options.redundant_group);
  const int copies = redundant ? redundant.size() : 1;
  whole.agree(whole.size() == distributed.size() * copies,
              concat(class_name, ": process_group has ", whole.size(), " ranks, distributed_group ", distributed.size(),
                     " and redundant_group ", copies, "; the product must be the first"));
}

/// Gives the parameters that groups gained since the last call their places and state. Collective when there are some.
void ShardedOptimizer::Impl::adopt_new_params() {
  std::vector<Param> fresh;
  std::int64_t number = 0;
  for (std::size_t g = 0; g < self.groups().size(); ++g)
    for (const Tensor& t : self.groups()[g].params) {
      if (!index_of.contains(t.id())) fresh.push_back({t, g, number, t.dtype(), t.strides()});
      ++number;
    }
  if (fresh.empty()) return;
  // A new group comes last, so that numbers already given stay.
  std::string why;
  std::ostringstream own;
  own << options.dtype << ' ' << grad_sync << ' ' << param_sync << " cap " << options.bucket_cap_mb << " MiB, options "
      << options.average_grad_sync << options.overlap_grad_sync << options.overlap_param_sync
      << options.contiguous_param_buffer << options.contiguous_grad_buffer << options.store_params
      << options.store_param_remainders << options.with_scaled_states << wire.full_reduce << wire.e5m2
      << wire.gather_late << " clip " << wire.clip_own << '\n';
  for (const Param& p : fresh) {
    const Tensor& first = params.empty() ? fresh.front().tensor : params.front().tensor;
    const auto refuse = [&](const auto&... words) {
      if (why.empty()) why = concat(class_name, ": parameter ", p.number, ' ', words...);
    };
    if (p.tensor.device() != first.device()) refuse("is on ", p.tensor.device(), ", the first on ", first.device());
    if (!is_state_dtype(p.dtype)) refuse("is ", p.dtype, "; f32, f16 and bf16 are taken");
    if (options.store_param_remainders && p.dtype != DType::bf16)
      refuse("is ", p.dtype, ", but store_param_remainders needs bf16");
    if (options.contiguous_param_buffer && p.dtype != param_sync)
      refuse("is ", p.dtype, ", but contiguous_param_buffer needs param_sync_dtype, ", param_sync);
    own << "parameter " << p.number << ": " << p.dtype << ' ' << p.tensor.sizes() << " strides " << p.strides
        << " group " << p.group << '\n';
  }
  whole.agree(why.empty(), why);
  const std::string theirs = whole.broadcast(own.str(), 0, "parameters of the optimizer");
  if (theirs != own.str()) {
    std::istringstream here(own.str()), there(theirs);
    std::string a, b;
    do {
      if (!std::getline(here, a)) a = "nothing";
      if (!std::getline(there, b)) b = "nothing";
    } while (a == b);
    why = concat(class_name, ": differs from rank 0: here '", a, "', there '", b, "'");
  }
  whole.agree(why.empty(), why);

  std::vector<Tensor> tensors;
  for (const Param& p : fresh) tensors.push_back(p.tensor);
  parallel::detail::broadcast_coalesced(tensors, 0, whole, "initial parameters");
  for (const Tensor& t : tensors) t.raise_version();

  std::reverse(fresh.begin(), fresh.end());
  if (layout.shard() == 0) {
    const std::int64_t unit = shard_alignment(grad_sync);
    std::int64_t need = 0;
    for (const Param& p : fresh) need += (p.tensor.numel() + unit - 1) / unit * unit;
    need = std::max<std::int64_t>(1, (need / unit + distributed.size() - 1) / distributed.size());
    // No more buckets than the cap asks for, but of one size: a last one that is nearly empty would be state in vain.
    const std::int64_t most = shard_size(grad_sync, distributed.size(), options.bucket_cap_mb) / unit;
    const std::int64_t count = (need + most - 1) / most;
    layout = ShardLayout(grad_sync, distributed.size(), (need + count - 1) / count * unit);
  }
  layout.close();
  const std::size_t first_bucket = buckets.size(), first_local = locals.size();
  for (Param& p : fresh) {
    const std::size_t i = params.size();
    index_of[p.tensor.id()] = i;
    layout.add(p.tensor.numel());
    buckets.resize(static_cast<std::size_t>(layout.buckets()));
    for (const std::size_t f : layout.of_param(static_cast<std::int64_t>(i))) {
      const std::int64_t b = layout.fragments()[f].bucket;
      Bucket& bucket = buckets[static_cast<std::size_t>(b)];
      if (bucket.params.empty() || bucket.params.back() != i) bucket.params.push_back(i);
      if (const auto part = layout.local(f, rank())) {
        bucket.locals.push_back(locals.size());
        locals.push_back({i, b, *part});
      }
    }
    params.push_back(std::move(p));
    if (requires_grad(params.back().tensor)) add_hook(i);
  }
  known = number;
  local = true;  // the new buckets take part in the next synchronisation
  make_state(first_bucket, first_local);
  warn_fill();
}

void ShardedOptimizer::Impl::make_state(std::size_t first_bucket, std::size_t first_local) {
  const Device where = device();
  const auto count = static_cast<std::int64_t>(locals.size()), before = static_cast<std::int64_t>(first_local);
  const auto grown = [&](const Tensor& old, const Dims& sizes, DType dtype) {
    const Tensor out = zeros(sizes, dtype, where);
    if (old.defined() && before > 0) {
      const int last = out.dim() - 1;
      kernels::copy(out.context(), views::narrow(out, last, 0, before).view(), old.view());
    }
    return out;
  };
  steps = grown(steps, {count}, DType::i32);
  if (scaled()) scales = grown(scales, {3, count}, DType::f32);
  if (!scale.defined()) {
    scale = ones({1}, DType::f32, where);
    never = zeros({1}, DType::i32, where);
  }

  const std::int64_t fresh = static_cast<std::int64_t>(buckets.size() - first_bucket);
  Tensor all_gradients, all_params;
  if (options.contiguous_grad_buffer) all_gradients = zeros({fresh * layout.bucket_size()}, grad_sync, where);
  if (options.contiguous_param_buffer) all_params = zeros({fresh * layout.bucket_size()}, param_sync, where);
  for (std::size_t b = first_bucket; b < buckets.size(); ++b) {
    Bucket& bucket = buckets[b];
    const Dims shard{layout.shard()};
    bucket.exp_avg = zeros(shard, options.dtype, where);
    bucket.exp_avg_sq = zeros(shard, options.dtype, where);
    if (options.store_param_remainders) bucket.remainders = zeros({2 * layout.shard()}, DType::u8, where);
    if (keeps_params()) bucket.params_shard = zeros(shard, options.dtype, where);
    const std::int64_t at = static_cast<std::int64_t>(b - first_bucket) * layout.bucket_size();
    if (all_gradients.defined()) bucket.gradients = views::narrow(all_gradients, 0, at, layout.bucket_size());
    if (all_params.defined()) {
      bucket.gathered = views::narrow(all_params, 0, at, layout.bucket_size());
      bucket.own = views::narrow(bucket.gathered, 0, rank() * layout.shard(), layout.shard());
    }
  }
  if (all_params.defined())
    for (Param& p : params) {
      const auto& fragments = layout.of_param(index_of.at(p.tensor.id()));
      if (fragments.empty()) continue;
      const Fragment& f = layout.fragments()[fragments.front()];
      if (static_cast<std::size_t>(f.bucket) < first_bucket) continue;
      const std::int64_t at =
          (f.bucket - static_cast<std::int64_t>(first_bucket)) * layout.bucket_size() + f.in_bucket.begin;
      const Tensor place = views::as_strided(all_params, p.tensor.sizes(), p.strides, at);
      kernels::copy(place.context(), place.view(), p.tensor.view());
      p.tensor.set_data(place);
    }
  std::vector<std::size_t> which;
  for (std::size_t l = first_local; l < locals.size(); ++l) which.push_back(l);
  read_params(which);
}

/// The stored shards from the parameters.
void ShardedOptimizer::Impl::read_params(const std::vector<std::size_t>& which) {
  if (options.store_param_remainders) {
    for (const std::size_t l : which) {
      const Local& local = locals[l];
      const Range bytes{2 * local.part.in_shard.begin, 2 * local.part.in_shard.end};
      kernels::fill(context(), slice(buckets[static_cast<std::size_t>(local.bucket)].remainders, bytes), 0.0);
    }
    return;
  }
  if (!keeps_params()) return;
  std::vector<Tensor> wide;
  std::vector<View> values;
  for (const std::size_t l : which) {
    const Local& local = locals[l];
    const View from = slice(params[local.param].tensor, local.part.in_param);
    if (!scaled()) {
      kernels::copy(context(), slice(buckets[static_cast<std::size_t>(local.bucket)].params_shard, local.part.in_shard),
                    from);
      continue;
    }
    wide.push_back(empty({local.part.in_shard.size()}, DType::f32, device()));
    values.push_back(wide.back().view());
    kernels::copy(context(), values.back(), from);
  }
  if (scaled()) store_scaled(which, 0, values, never.view());
}

void ShardedOptimizer::Impl::warn_fill() {
  const double vain = (1.0 - layout.fill_ratio()) * static_cast<double>(layout.buckets() * layout.bucket_size());
  if (warned_fill || layout.fill_ratio() >= kLeastFill) return;
  if (vain * static_cast<double>(size_of(options.dtype)) < kLeastVain) return;
  warned_fill = true;
  if (whole.rank() == 0)
    log_warning(concat(class_name, ": parameters fill ", static_cast<int>(100 * layout.fill_ratio()), "% of ",
                       layout.buckets(), " buckets of ", layout.bucket_size(),
                       " elements; the rest is memory in vain, set a smaller bucket_cap_mb"));
}

/// State follows the memory order that parameters had when it was made.
void ShardedOptimizer::Impl::check_unchanged() const {
  for (const Param& p : params) {
    bool same = p.tensor.dtype() == p.dtype && p.tensor.device() == device();
    for (int d = 0; same && d < p.tensor.dim(); ++d)
      same = p.tensor.size(d) == 1 || p.tensor.strides()[d] == p.strides[d];
    if (!same)
      fail(Kind::state, concat(class_name, ": parameter ", p.number,
                               " was cast, moved or re-laid after the optimizer was made; prepare the model first"));
  }
}

ShardedOptimizer::ShardedOptimizer(apex::optimizers::HyperMap defaults, ShardingOptions sharding,
                                   const char* class_name, bool takes_scaled, const ShardedOptimizerWire& wire)
    : Optimizer(std::move(defaults), {}) {
  check_options(sharding, class_name, takes_scaled);
  impl_ = std::make_unique<Impl>(*this, std::move(sharding), class_name, wire);
}

ShardedOptimizer::~ShardedOptimizer() {
  try {  // parameters outlive this; with an exception under way the others may not come any more
    if (impl_ && std::uncaught_exceptions() == 0) impl_->finish_params();
  } catch (const Error&) {  // the Session has ended
  }
  for (auto& p : impl_->params) p.hook.remove();
}

void ShardedOptimizer::start() {
  NoGradGuard no_grad;
  impl_->adopt_new_params();
}

const ShardLayout& ShardedOptimizer::layout() const { return impl_->layout; }
const ShardingOptions& ShardedOptimizer::sharding() const { return impl_->options; }
const dist::ProcessGroup& ShardedOptimizer::distributed_group() const { return impl_->distributed; }
Device ShardedOptimizer::device() const { return impl_->device(); }
std::int64_t ShardedOptimizer::param_count() const { return impl_->known; }

void ShardedOptimizer::check_adam_hyper(const apex::optimizers::HyperMap& hyper) const {
  const apex::optimizers::ParamGroup group{.params = {}, .hyper = hyper};
  for (const char* key : {"lr", "eps", "weight_decay"})
    if (!(group.number(key) >= 0.0) || std::isinf(group.number(key)))
      fail(Kind::argument, concat(type(), ": ", key, ' ', group.number(key), " is not a finite number >= 0"));
  for (const char* key : {"beta1", "beta2"})
    if (!(group.number(key) >= 0.0 && group.number(key) < 1.0))
      fail(Kind::argument, concat(type(), ": ", key, ' ', group.number(key), " is not in [0, 1)"));
}

kernels::StepInputs ShardedOptimizer::inputs(const apex::optimizers::ParamGroup& group, const StepScaling& scaling,
                                             double factor) {
  kernels::StepInputs in;
  in.found_inf = scaling.found_inf.view();
  in.inv_scale = scaling.inv_scale.view();
  in.lr_on_device = group.lr_on_device.view();
  in.grad_scale = factor;
  return in;
}

std::int64_t ShardedOptimizer::state_bytes() const {
  std::size_t bytes = 0;
  const auto add = [&](const Tensor& t) { bytes += t.defined() ? t.bytes() : 0; };
  for (const auto& b : impl_->buckets)
    for (const Tensor* t : {&b.params_shard, &b.remainders, &b.exp_avg, &b.exp_avg_sq}) add(*t);
  add(impl_->scales);
  return static_cast<std::int64_t>(bytes);
}

std::vector<ShardedOptimizer::StateKey> ShardedOptimizer::state_keys(const Tensor&) const { return {}; }

}  // namespace apex::contrib::optimizers
