// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "sharded_state.hpp"

namespace apex::contrib::optimizers {
namespace {

constexpr const char* kKeys[] = {"master", "exp_avg", "exp_avg_sq"};  // by kind

Tensor on_host(const Tensor& t) { return nn::functional::to(t, kCpu); }

/// [0, n) cut among ranks.
Range share_of(std::int64_t n, int rank, int ranks) { return {n * rank / ranks, n * (rank + 1) / ranks}; }

}  // namespace

// ---- out ----

/// Writes this rank's shard of a bucket, in f32 and as the state means it, to `out`.
void ShardedOptimizer::Impl::read_shard(Bucket& b, int kind, const Tensor& out) {
  const Context ctx = context();
  if (scaled()) {
    for (const std::size_t l : b.locals) load_scaled({l}, kind, {slice(out, locals[l].part.in_shard)});
    return;
  }
  if (kind != 0 || !options.store_param_remainders) {
    kernels::copy(ctx, out.view(), state_tensor(b, kind).view());
    return;
  }
  for (const std::size_t l : b.locals) {
    const Local& local_part = locals[l];
    const std::int64_t n = local_part.part.in_shard.size();
    const Tensor upper = empty({n}, DType::bf16, device()), lower = empty({2 * n}, DType::u8, device());
    kernels::copy(ctx, upper.view(), slice(params[local_part.param].tensor, local_part.part.in_param));
    kernels::copy(ctx, lower.view(),
                  slice(b.remainders, {2 * local_part.part.in_shard.begin, 2 * local_part.part.in_shard.end}));
    const Tensor high = on_host(upper), low = on_host(lower), joined = empty({n});
    for (std::int64_t i = 0; i < n; ++i) {
      std::int16_t rem = 0;
      std::uint16_t hi = 0;
      std::memcpy(&rem, low.data<std::uint8_t>() + 2 * i, sizeof rem);
      std::memcpy(&hi, static_cast<const std::byte*>(high.raw_data()) + 2 * i, sizeof hi);
      joined.data<float>()[i] = join_halves(hi, rem);
    }
    kernels::transfer(ctx, slice(out, local_part.part.in_shard), joined.view());
  }
}

/// Calls f(parameter, kind, values) with the whole values of every parameter that has been stepped and is wanted for
/// that kind: f32, in the parameter's layout, on its device. One bucket is gathered at a time.
void ShardedOptimizer::Impl::gather_state(const std::vector<std::int64_t>& counts,
                                          const std::function<void(std::size_t p, int kind, const Tensor& values)>& f) {
  for (int kind = 0; kind < 3; ++kind) {
    std::unordered_map<std::size_t, Tensor> open;
    for (std::int64_t number = 0; number < layout.buckets(); ++number) {
      Bucket& b = buckets[static_cast<std::size_t>(number)];
      const auto wanted = [&](std::size_t p) { return counts[p] > 0 && (kind != 0 || has_master(params[p])); };
      if (std::none_of(b.params.begin(), b.params.end(), wanted)) continue;
      const Tensor shard = zeros({layout.shard()}, DType::f32, device());
      read_shard(b, kind, shard);
      Tensor whole_bucket = shard;
      if (!one_rank()) {
        whole_bucket = empty({layout.bucket_size()}, DType::f32, device());
        distributed.in_stream().all_gather(whole_bucket, shard, "state of the optimizer").wait();
      }
      for (const std::size_t fi : layout.of_bucket(number)) {
        const Fragment& fragment = layout.fragments()[fi];
        const auto p = static_cast<std::size_t>(fragment.param);
        if (!wanted(p)) continue;
        Tensor& values = open[p];
        if (!values.defined()) values = empty_like(params[p].tensor, DType::f32);
        kernels::copy(context(), slice(values, fragment.in_param), slice(whole_bucket, fragment.in_bucket));
        if (fragment.in_param.end < params[p].tensor.numel()) continue;
        f(p, kind, values);
        open.erase(p);
      }
    }
    for (std::size_t p = 0; p < params.size(); ++p)
      if (params[p].tensor.numel() == 0 && counts[p] > 0 && (kind != 0 || has_master(params[p])))
        f(p, kind, empty_like(params[p].tensor, DType::f32));
  }
}

/// Updates that each parameter has had, by the layout's numbers: the same on all ranks.
std::vector<std::int64_t> ShardedOptimizer::Impl::update_counts() {
  std::vector<std::int64_t> counts(params.size());
  const Tensor here = on_host(steps);
  for (std::size_t l = 0; l < locals.size(); ++l)
    counts[locals[l].param] = std::max<std::int64_t>(counts[locals[l].param], here.data<std::int32_t>()[l]);
  if (!counts.empty()) whole.all_reduce(std::span(counts), dist::ReduceOp::max, "step counts");
  const auto most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  for (std::size_t p = 0; p < params.size(); ++p)
    if (params[p].tensor.numel() == 0) counts[p] = most;
  return counts;
}

void ShardedOptimizer::for_each_part(const std::function<void(const StatePart&)>& f) const {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.finish_params();
  const auto counts = i.update_counts();
  const auto count_of = [&](std::size_t p) {
    return StatePart{i.params[p].tensor,
                     "step",
                     {1},
                     0,
                     from_values<std::int32_t>({1}, {static_cast<std::int32_t>(counts[p])}),
                     true};
  };
  for (std::size_t p = 0; p < i.params.size(); ++p)
    if (counts[p] > 0) f(count_of(p));
  i.gather_state(counts, [&](std::size_t p, int kind, const Tensor& values) {
    const Range share = share_of(values.numel(), i.whole.rank(), i.whole.size());
    Tensor rows = values;
    if (!values.is_contiguous()) {
      rows = empty(values.sizes(), DType::f32, values.device());
      kernels::copy(rows.context(), rows.view(), values.view());
    }
    const Tensor flat = views::as_strided(rows, {share.size()}, {1}, rows.storage_offset() + share.begin);
    const Tensor part = flat.device().is_cpu() ? clone(flat) : on_host(flat);
    f({i.params[p].tensor, kKeys[kind], values.sizes(), share.begin, part, false});
  });
}

void ShardedOptimizer::for_each_state(
    const std::function<void(const Tensor& param, const std::string& key, const Tensor& value)>& f) const {
  const auto state = state_dict();
  std::size_t next = 0;
  for (const auto& group : groups())
    for (const Tensor& p : group.params)
      for (const auto& [key, value] : state.state[next++]) f(p, key, value);
}

apex::optimizers::OptimizerState ShardedOptimizer::state_dict() const {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.finish_params();
  i.adopt_new_params();
  apex::optimizers::OptimizerState out;
  out.type = state_type();
  std::int64_t next = 0;
  for (const auto& group : groups()) {
    auto& g = out.groups.emplace_back();
    g.hyper = group.hyper;
    for (std::size_t p = 0; p < group.params.size(); ++p) g.params.push_back(next++);
  }
  out.state.resize(static_cast<std::size_t>(next));
  const auto counts = i.update_counts();
  for (std::size_t p = 0; p < i.params.size(); ++p)
    if (counts[p] > 0)
      out.state[static_cast<std::size_t>(i.params[p].number)]["step"] =
          from_values<std::int32_t>({1}, {static_cast<std::int32_t>(counts[p])});
  i.gather_state(counts, [&](std::size_t p, int kind, const Tensor& values) {
    out.state[static_cast<std::size_t>(i.params[p].number)][kKeys[kind]] = on_host(values);
  });
  return out;
}

// ---- in ----

/// What this rank keeps of a parameter's values: its local parts one after the other, f32, on the host.
Tensor ShardedOptimizer::part_to_keep(const Tensor& param, std::string_view key, const Tensor& whole) const {
  Impl& i = *impl_;
  const auto found = i.index_of.find(param.id());
  if (key == "step" || found == i.index_of.end() || whole.sizes() != param.sizes()) return whole;
  return i.local_values(found->second, whole);
}

Tensor ShardedOptimizer::Impl::local_values(std::size_t p, const Tensor& values) {
  NoGradGuard no_grad;
  const Param& param = params[p];
  std::int64_t count = 0;
  for (std::size_t l = 0; l < locals.size(); ++l)
    if (locals[l].param == p) count += locals[l].part.in_param.size();
  if (values.sizes() != param.tensor.sizes()) {
    if (values.dim() == 1 && values.numel() == count) return values;
    fail(Kind::data, concat(class_name, ": state of parameter ", param.number, " is ", values.sizes(),
                            ", the parameter ", param.tensor.sizes()));
  }
  const Tensor host = on_host(values), laid = empty_like(param.tensor, DType::f32, kCpu), out = empty({count});
  kernels::copy(laid.context(), laid.view(), host.view());
  std::int64_t at = 0;
  for (const Local& l : locals) {
    if (l.param != p || l.part.in_param.size() == 0) continue;
    std::memcpy(out.data<float>() + at, static_cast<const float*>(laid.raw_data()) + l.part.in_param.begin,
                static_cast<std::size_t>(l.part.in_param.size()) * sizeof(float));
    at += l.part.in_param.size();
  }
  return out;
}

/// Stores f32 host values of the local parts of a parameter.
void ShardedOptimizer::Impl::write_locals(std::size_t p, int kind, const Tensor& values) {
  const Context ctx = context();
  std::int64_t at = 0;
  for (std::size_t l = 0; l < locals.size(); ++l) {
    if (locals[l].param != p) continue;
    Bucket& b = buckets[static_cast<std::size_t>(locals[l].bucket)];
    const Range& range = locals[l].part.in_shard;
    const Tensor host = views::narrow(values, 0, at, range.size());
    at += range.size();
    if (kind == 0 && options.store_param_remainders) {
      write_halves(locals[l], host);
      continue;
    }
    const Tensor near = clone(nn::functional::to(host, device()));
    if (scaled())
      store_scaled({l}, kind, {near.view()}, never.view());
    else
      kernels::copy(ctx, slice(state_tensor(b, kind), range), near.view());
  }
}

void ShardedOptimizer::Impl::write_halves(const Local& l, const Tensor& values) {
  const std::int64_t n = values.numel();
  const Tensor high = empty({n}, DType::bf16), low = empty({2 * n}, DType::u8);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto [hi, rem] = split_halves(values.data<float>()[i]);
    std::memcpy(static_cast<std::byte*>(high.raw_data()) + 2 * i, &hi, sizeof hi);
    std::memcpy(low.data<std::uint8_t>() + 2 * i, &rem, sizeof rem);
  }
  kernels::copy(context(), slice(params[l.param].tensor, l.part.in_param), nn::functional::to(high, device()).view());
  kernels::copy(context(),
                slice(buckets[static_cast<std::size_t>(l.bucket)].remainders,
                      {2 * l.part.in_shard.begin, 2 * l.part.in_shard.end}),
                nn::functional::to(low, device()).view());
}

void ShardedOptimizer::load_state_dict(const apex::optimizers::OptimizerState& from) {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.finish_params();
  i.adopt_new_params();
  struct Entry {
    std::size_t param;
    std::int64_t step = 0;
    std::array<Tensor, 3> values = {};
  };
  std::vector<apex::optimizers::HyperMap> hyper;
  std::vector<Entry> entries;
  std::int64_t without_master = 0;
  Kind kind = Kind::data;
  std::string why;
  try {
    if (from.type != state_type() && from.type != type())
      fail(Kind::data, concat("the state is of a ", from.type, ", this optimizer is a ", type()));
    if (from.groups.size() != groups().size())
      fail(Kind::data, concat(type(), ": the state has ", from.groups.size(), " parameter groups, the optimizer ",
                              groups().size()));
    for (std::size_t g = 0; g < groups().size(); ++g) {
      const auto& params = groups()[g].params;
      if (from.groups[g].params.size() != params.size())
        fail(Kind::data, concat(type(), ": group ", g, " of the state has ", from.groups[g].params.size(),
                                " parameters, the optimizer's ", params.size()));
      hyper.push_back(hyper_of_state(from, g));
      const auto group_step = from.groups[g].hyper.find("step");
      for (std::size_t k = 0; k < params.size(); ++k) {
        const auto number = static_cast<std::size_t>(from.groups[g].params[k]);
        if (number >= from.state.size()) fail(Kind::data, concat(type(), ": the state names parameter ", number));
        Entry& entry = entries.emplace_back(Entry{i.index_of.at(params[k].id())});
        const auto& state = from.state[number];
        for (const auto& [key, value] : state) {
          if (key == "step") {
            if (value.numel() != 1) fail(Kind::data, concat(type(), ": 'step' of parameter ", number, " is no number"));
            entry.step = static_cast<std::int64_t>(value.item());
            continue;
          }
          const auto* known = std::find(std::begin(kKeys), std::end(kKeys), key);
          if (known == std::end(kKeys)) fail(Kind::data, concat(type(), " keeps no state '", key, '\''));
          entry.values[static_cast<std::size_t>(known - std::begin(kKeys))] = i.local_values(entry.param, value);
        }
        if (state.empty()) continue;
        if (!state.contains("step") && group_step != from.groups[g].hyper.end())
          entry.step = std::visit([](auto v) { return static_cast<std::int64_t>(v); }, group_step->second);
        for (const char* key : {"exp_avg", "exp_avg_sq"})
          if (!state.contains(key)) fail(Kind::data, concat(type(), ": parameter ", number, " has no '", key, '\''));
        if (entry.step <= 0 || entry.step > INT32_MAX)
          fail(Kind::data, concat(type(), ": parameter ", number, " has state, but no step count"));
        without_master += i.has_master(i.params[entry.param]) && !entry.values[0].defined();
      }
    }
  } catch (const Error& e) {
    kind = e.kind();
    why = e.what();
  }
  i.whole.agree(why.empty(), why, kind);

  i.gather_due = false;
  for (std::size_t g = 0; g < groups().size(); ++g)
    for (const auto& [key, value] : hyper[g]) set_hyper(g, key, value);
  const Tensor counts = zeros({static_cast<std::int64_t>(i.locals.size())}, DType::i32);
  i.loaded_masters.assign(i.params.size(), Tensor());
  for (auto& b : i.buckets)
    for (int k = 1; k < 3; ++k) kernels::fill(i.context(), i.state_tensor(b, k).view(), 0.0);
  for (const Entry& entry : entries) {
    for (std::size_t l = 0; l < i.locals.size(); ++l)
      if (i.locals[l].param == entry.param) counts.data<std::int32_t>()[l] = static_cast<std::int32_t>(entry.step);
    for (int k = 1; k < 3; ++k)
      if (const Tensor& values = entry.values[static_cast<std::size_t>(k)]; values.defined())
        i.write_locals(entry.param, k, values);
    if (i.has_master(i.params[entry.param])) i.loaded_masters[entry.param] = entry.values[0];
  }
  if (i.steps.numel() > 0) kernels::transfer(i.context(), i.steps.view(), counts.view());
  if (without_master > 0 && !std::exchange(i.warned_masters, true) && i.whole.rank() == 0)
    log_warning(concat(type(), ": the state has no masters of ", without_master,
                       " parameters; they are taken from the 16-bit parameters"));
  parameters_loaded();
}

/// Masters from the state are what counts; what has none is as the parameter says.
void ShardedOptimizer::parameters_loaded() {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  i.finish_params();
  i.check_unchanged();
  std::vector<std::size_t> others;
  bool any = false;
  i.loaded_masters.resize(i.params.size());
  for (std::size_t p = 0; p < i.params.size(); ++p) {
    if (i.loaded_masters[p].defined()) {
      i.write_locals(p, 0, i.loaded_masters[p]);
      any = true;
      continue;
    }
    for (std::size_t l = 0; l < i.locals.size(); ++l)
      if (i.locals[l].param == p) others.push_back(l);
  }
  i.read_params(others);
  if (any) i.publish();
}

/// All ranks get the parameters as this rank's shards say they are.
void ShardedOptimizer::Impl::publish() {
  for (Bucket& b : buckets) {
    if (wire.e5m2) continue;
    if (!options.contiguous_param_buffer) b.own = empty({layout.shard()}, param_sync, device());
    for (const std::size_t l : b.locals) {
      const Local& local_part = locals[l];
      const View to = slice(b.own, local_part.part.in_shard);
      const bool stored = loaded_masters[local_part.param].defined() && !options.store_param_remainders;
      if (!stored) {
        const View from = slice(params[local_part.param].tensor, local_part.part.in_param);
        if (from.data != to.data) kernels::copy(context(), to, from);
      } else if (scaled()) {
        const Tensor wide = empty({local_part.part.in_shard.size()}, DType::f32, device());
        load_scaled({l}, 0, {wide.view()});
        kernels::copy(context(), to, wide.view());
      } else {
        kernels::copy(context(), to, slice(b.params_shard, local_part.part.in_shard));
      }
    }
  }
  if (wire.e5m2) encode_own();
  unpack_frozen = true;
  gather(false, never);
  unpack_frozen = false;
}

void ShardedOptimizer::set_state(const Tensor& param, const std::string& key, const Tensor& value) {
  NoGradGuard no_grad;
  Impl& i = *impl_;
  const auto found = i.index_of.find(param.id());
  if (found == i.index_of.end())
    fail(Kind::argument, concat(type(), "::set_state: the tensor is no parameter of this optimizer"));
  if (key == "step") {
    for (std::size_t l = 0; l < i.locals.size(); ++l)
      if (i.locals[l].param == found->second)
        kernels::fill(i.context(), slice(i.steps, {static_cast<std::int64_t>(l), static_cast<std::int64_t>(l) + 1}),
                      value.item());
    return;
  }
  const auto* known = std::find(std::begin(kKeys), std::end(kKeys), key);
  if (known == std::end(kKeys) || known == std::begin(kKeys))
    fail(Kind::argument, concat(type(), "::set_state: '", key, "' cannot be set; load_state_dict sets all"));
  i.write_locals(found->second, static_cast<int>(known - std::begin(kKeys)), i.local_values(found->second, value));
}

}  // namespace apex::contrib::optimizers
