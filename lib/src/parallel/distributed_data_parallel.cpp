// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/distributed_data_parallel.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

#include "apex/autograd.hpp"
#include "ddp_setup.hpp"
#include "gradient_bucket.hpp"

namespace apex::parallel {

using detail::Contribution;
using detail::GradientBucket;

struct DistributedDataParallel::Impl {
  /// What the next gradient is for.
  enum class Phase {
    idle,        ///< no forward since the last backward
    accumulate,  ///< forward ran under no_sync
    synchronise
  };

  /// A parameter that requires a gradient, as it was when the plan was made.
  struct Active {
    Tensor tensor;
    std::string name;
    DType dtype;
    std::int64_t numel;
    bool trigger;
    HookHandle hook;
    int bucket = -1;  ///< -1: not in the plan

    bool is(const Tensor& t) const { return tensor.is_same(t) && dtype == t.dtype() && numel == t.numel(); }
  };

  struct Launched {
    int number;
    GradientBucket bucket;
    Clock::time_point at;
  };

  const std::shared_ptr<nn::Module>& module;  // of the outer object: replace_child() may change it
  const Options options;
  const dist::ProcessGroup group;  // the ddp channel
  const std::vector<dist::ProcessGroup> groups;
  const detail::ReduceRule rule;

  std::vector<Active> active;
  std::unordered_map<const void*, std::size_t> index_of;
  BucketPlan plan;
  bool needs_plan = true;
  int no_sync_depth = 0;

  // Of the iteration under way.
  Phase phase = Phase::idle;
  bool callback_queued = false;
  BucketRecorder recorder;
  std::vector<bool> arrived;  // by active index: in the recorder, or in its bucket
  std::vector<std::int64_t> ready_counts;
  int next_bucket = 0;
  std::vector<Launched> launched;
  // Since the last synchronising backward; a parameter used in any micro-batch counts as used.
  std::vector<bool> used;

  std::vector<Tensor> retained;

  /// What was reduced, kept until its times are asked for.
  struct Reduced {
    int number;
    Clock::time_point at;
    dist::Work work;
  };
  static constexpr std::size_t kIterationsKept = 4;  // so far the host may be ahead of the device
  std::deque<std::vector<Reduced>> iterations;       // the latest comes last
  bool timings_due = false;
  std::vector<BucketTiming> timings;

  Impl(const std::shared_ptr<nn::Module>& m, const dist::ProcessGroup& g, const Options& o)
      : module(m),
        options(o),
        group(g),
        groups(detail::bucket_groups(g, o)),
        rule{o.gradient_average, o.allreduce_always_fp32, o.retain_allreduce_buffers, o.gradient_predivide_factor},
        recorder(detail::bucket_rule(o)) {
    for (const Tensor& trigger : options.allreduce_trigger_params) {
      const auto all = module->parameters();
      if (std::none_of(all.begin(), all.end(), [&](const Tensor& p) { return p.is_same(trigger); }))
        fail(Kind::argument, "DistributedDataParallel: a trigger parameter is not a parameter of the module");
    }
    refresh_active();
  }

  ~Impl() { remove_hooks(); }

  Device device() const { return active.empty() ? kCpu : active.front().tensor.device(); }

  void remove_hooks() {
    for (Active& a : active) a.hook.remove();
  }

  /// Looks for parameters that began or ceased to require a gradient, or were replaced. Then the plan is void.
  void refresh_active() {
    std::size_t n = 0;
    bool same = true;
    for (const Tensor& p : module->parameters()) {
      if (!requires_grad(p)) continue;
      same = same && n < active.size() && active[n].is(p);
      ++n;
    }
    if (same && n == active.size()) return;
    remove_hooks();
    active.clear();
    index_of.clear();
    for (const auto& [name, p] : module->named_parameters()) {
      if (!requires_grad(p)) continue;
      const std::size_t i = active.size();
      const auto& triggers = options.allreduce_trigger_params;
      const bool trigger =
          std::any_of(triggers.begin(), triggers.end(), [&p = p](const Tensor& t) { return t.is_same(p); });
      active.push_back({p, name, p.dtype(), p.numel(), trigger,
                        add_post_accumulate_hook(p, [this, i](const Tensor&) { on_gradient(i); })});
      index_of[p.id()] = i;
    }
    used.assign(active.size(), false);
    forget_plan();
  }

  void forget_plan() {
    plan = {};
    needs_plan = true;
    for (Active& a : active) a.bucket = -1;
  }

  void adopt(BucketPlan new_plan) {
    plan = std::move(new_plan);
    for (Active& a : active) a.bucket = -1;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b)
      for (const std::int32_t i : plan.buckets[b]) active[static_cast<std::size_t>(i)].bucket = static_cast<int>(b);
    needs_plan = false;
  }

  bool fits(const BucketPlan& candidate) const {
    std::vector<bool> seen(active.size());
    std::size_t entries = 0;
    for (const auto& bucket : candidate.buckets)
      for (const std::int32_t entry : bucket) {
        const auto i = static_cast<std::size_t>(entry);
        if (entry < 0 || i >= active.size() || seen[i]) return false;
        if (active[i].dtype != active[static_cast<std::size_t>(bucket.front())].dtype) return false;
        seen[i] = true;
        ++entries;
      }
    return entries == active.size();
  }

  void begin_iteration() {
    refresh_active();
    phase = no_sync_depth > 0 ? Phase::accumulate : Phase::synchronise;
    callback_queued = false;
    if (phase == Phase::accumulate) return;
    if (detail::capturing(device())) {
      if (needs_plan && !options.delay_allreduce)
        fail(Kind::state,
             "DistributedDataParallel: this step records the order of gradients and cannot be captured into a graph; "
             "run one step before, and one after each change of what requires a gradient");
      if (options.find_unused_parameters || options.delay_allreduce)
        fail(Kind::unsupported,
             "DistributedDataParallel: with find_unused_parameters or delay_allreduce the ranks agree by the host in "
             "each step, which a graph cannot hold");
    }
    static_cast<void>(recorder.finish());
    arrived.assign(active.size(), false);
    ready_counts.assign(plan.buckets.size(), 0);
    next_bucket = 0;
    launched.clear();
    if (options.broadcast_buffers == BroadcastBuffers::each_forward && module->is_training())
      detail::broadcast_coalesced(module->buffers(), 0, group, "buffers");
  }

  void after_forward(std::span<const Tensor> outputs) {
    if (!options.find_unused_parameters) return;
    for (const Tensor& leaf : reachable_leaves(outputs))
      if (const auto at = index_of.find(leaf.id()); at != index_of.end()) used[at->second] = true;
  }

  void on_gradient(std::size_t i) {
    if (phase == Phase::accumulate) return;
    if (phase == Phase::idle)
      fail(Kind::state, concat("DistributedDataParallel: '", active[i].name,
                               "' got a gradient, but forward was not called "
                               "through DistributedDataParallel since the last backward; add several losses up for one "
                               "backward, use no_sync(), or delay_allreduce"));
    if (rule.retain && is_retained(grad(active[i].tensor)))
      fail(Kind::state, concat("DistributedDataParallel: the gradient of '", active[i].name,
                               "' still lies in a retained "
                               "buffer; drop gradients before each backward (zero_grad(true))"));
    if (!callback_queued) {
      callback_queued = true;
      queue_backward_callback([this] { end_of_backward(); });
      if (options.find_unused_parameters && !options.delay_allreduce && !needs_plan) fill_unused();
    }
    if (options.delay_allreduce) return;
    if (needs_plan)
      record(i);
    else
      fill(i);
  }

  bool is_retained(const Tensor& g) const {
    return g.defined() && std::any_of(retained.begin(), retained.end(),
                                      [&](const Tensor& flat) { return flat.storage() == g.storage(); });
  }

  void record(std::size_t i) {
    if (arrived[i]) throw_second(i);
    arrived[i] = true;
    recorder.add(static_cast<std::int32_t>(i), active[i].dtype, active[i].numel, active[i].trigger);
  }

  /// The gradient (or its absence) of parameter i is final: its bucket may be ready.
  void fill(std::size_t i) {
    const int b = active[i].bucket;
    if (b < 0)
      fail(Kind::state, concat("DistributedDataParallel: '", active[i].name,
                               "' got a gradient, but had none when the buckets "
                               "were recorded; call rebuild_buckets(), or set find_unused_parameters"));
    if (arrived[i]) throw_second(i);
    arrived[i] = true;
    ++ready_counts[static_cast<std::size_t>(b)];
    while (next_bucket < static_cast<int>(plan.buckets.size()) &&
           ready_counts[static_cast<std::size_t>(next_bucket)] ==
               static_cast<std::int64_t>(plan.buckets[static_cast<std::size_t>(next_bucket)].size()))
      launch(next_bucket++);
  }

  [[noreturn]] void throw_second(std::size_t i) const {
    fail(Kind::state, concat("DistributedDataParallel: '", active[i].name,
                             "' got two gradients after one forward; add "
                             "several losses up for one backward, use no_sync(), or delay_allreduce"));
  }

  void fill_unused() {
    for (std::size_t i = 0; i < active.size(); ++i)
      if (!used[i]) fill(i);
  }

  void launch(int b) {
    const auto n = static_cast<std::size_t>(b);
    std::vector<Contribution> contributions;
    for (const std::int32_t i : plan.buckets[n]) contributions.push_back(contribution(static_cast<std::size_t>(i)));
    launched.push_back({b, {}, Clock::now()});
    launched.back().bucket.launch(contributions, rule, groups[n % groups.size()], concat("bucket ", b),
                                  stream_of(n % groups.size()));
  }

  /// The stream that the user gave for a group.
  std::optional<Context> stream_of(std::size_t group_index) const {
    if (!options.allreduce_communicators || !device().is_cuda()) return {};
    void* stream = options.allreduce_communicators->streams[group_index];
    if (stream == nullptr) return {};
    return Context{device(), stream};
  }

  Contribution contribution(std::size_t i) const {
    return {active[i].tensor, !options.find_unused_parameters || used[i]};
  }

  void end_of_backward() {
    callback_queued = false;
    if (!options.delay_allreduce) phase = Phase::idle;
    timings.clear();
    timings_due = false;
    if (options.delay_allreduce) {
      reduce_at_end(agree_on_gradients());
    } else if (needs_plan) {
      const auto everywhere = agree_on_gradients();
      agree_on_plan();
      reduce_at_end(everywhere);
    } else {
      finish_overlapped();
    }
    used.assign(active.size(), false);
  }

  /// By active index, whether any rank has a gradient. Without find_unused_parameters all ranks must have the same.
  std::vector<bool> agree_on_gradients() {
    std::vector<bool> here(active.size());
    for (std::size_t i = 0; i < active.size(); ++i)
      here[i] = options.find_unused_parameters ? used[i] : grad(active[i].tensor).defined();
    const auto anywhere = any_rank(here);
    if (options.find_unused_parameters) return anywhere;
    std::string missing;
    for (std::size_t i = 0; i < active.size(); ++i)
      if (anywhere[i] && !here[i]) missing += concat(missing.empty() ? "" : ", ", active[i].name);
    group.agree(missing.empty(),
                concat("DistributedDataParallel: other ranks have gradients that this one lacks: ", missing,
                       "; set find_unused_parameters if that is meant"),
                Kind::state);
    return anywhere;
  }

  std::vector<bool> any_rank(const std::vector<bool>& flags) const {
    const Tensor wire = empty({static_cast<std::int64_t>(flags.size())}, DType::u8);
    auto* bytes = wire.data<std::uint8_t>();
    for (std::size_t i = 0; i < flags.size(); ++i) bytes[i] = flags[i];
    group.in_stream().all_reduce(wire, dist::ReduceOp::max, "gradients that exist").wait();
    std::vector<bool> any(flags.size());
    for (std::size_t i = 0; i < flags.size(); ++i) any[i] = bytes[i] != 0;
    return any;
  }

  /// Rank 0's order of arrival wins.
  void agree_on_plan() {
    if (options.find_unused_parameters)
      for (std::size_t i = 0; i < active.size(); ++i)
        if (!arrived[i]) record(i);
    auto code = recorder.finish().encode();
    std::string bytes(reinterpret_cast<const char*>(code.data()), code.size() * sizeof code[0]);
    bytes = group.broadcast(std::move(bytes), 0, "bucket plan");
    code.resize(bytes.size() / sizeof code[0]);
    std::memcpy(code.data(), bytes.data(), bytes.size());
    adopt(BucketPlan::decode(code));
  }

  /// One flat all-reduce per dtype, in registration order, nothing hidden.
  void reduce_at_end(const std::vector<bool>& wanted) {
    std::vector<GradientBucket> flats;
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      std::vector<Contribution> contributions;
      for (std::size_t i = 0; i < active.size(); ++i)
        if (wanted[i] && active[i].dtype == dtype) contributions.push_back(contribution(i));
      if (contributions.empty()) continue;
      flats.emplace_back().launch(contributions, rule, group, concat("all gradients in ", name_of(dtype)));
    }
    retained.clear();
    std::vector<Reduced> done;
    for (auto& flat : flats) {
      flat.finish(std::vector<bool>(active.size(), true));
      done.push_back({0, {}, flat.work()});
      if (rule.retain) retained.push_back(flat.flat());
    }
    remember(std::move(done));
  }

  void remember(std::vector<Reduced> done) {
    if (detail::capturing(device())) return iterations.clear();  // a graph's collectives tell no times
    iterations.push_back(std::move(done));
    if (iterations.size() > kIterationsKept) iterations.pop_front();
  }

  void finish_overlapped() {
    // Used in an earlier micro-batch only: no hook came, but the gradient takes part.
    if (options.find_unused_parameters)
      for (std::size_t i = 0; i < active.size(); ++i)
        if (!arrived[i]) fill(i);
    std::string missing;
    for (std::size_t i = 0; i < active.size(); ++i)
      if (active[i].bucket >= 0 && !arrived[i]) missing += concat(missing.empty() ? "" : ", ", active[i].name);
    if (!missing.empty())
      fail(Kind::state, concat("DistributedDataParallel: no gradient for ", missing,
                               "; every parameter of the recorded plan "
                               "must take part in each iteration; set find_unused_parameters, or delay_allreduce"));
    std::vector<bool> wanted(active.size(), true);
    if (options.find_unused_parameters) wanted = any_rank(used);
    retained.clear();
    std::vector<Reduced> done;
    for (Launched& l : launched) {
      std::vector<bool> write;
      for (const std::int32_t i : plan.buckets[static_cast<std::size_t>(l.number)])
        write.push_back(wanted[static_cast<std::size_t>(i)]);
      l.bucket.finish(write);
      done.push_back({l.number, l.at, l.bucket.work()});
      if (rule.retain) retained.push_back(l.bucket.flat());
    }
    launched.clear();
    remember(std::move(done));
    timings_due = !iterations.empty();
  }

  const std::vector<BucketTiming>& resolved_timings() {
    if (!std::exchange(timings_due, false)) return timings;
    for (const Reduced& r : iterations.back()) {
      while (!r.work.wait_host(1.0)) {  // the watchdog ends a wait for a rank that never comes
      }
      const auto finished = r.work.finished().value_or(r.at);
      timings.push_back({r.number, r.at, finished == Clock::time_point{} ? r.at : finished});
    }
    return timings;
  }

  std::optional<double> exposed() const {
    for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration) {
      double sum = 0;
      bool known = true;
      for (const Reduced& r : *iteration) {
        const auto exposed_s = r.work.exposed_s();
        known = known && exposed_s;
        sum += exposed_s.value_or(0);
      }
      if (known) return sum;
    }
    return {};
  }
};

namespace {

dist::ProcessGroup ddp_channel(const dist::ProcessGroup& group) {
  return (group ? group : dist::ProcessGroup::world()).channel(dist::Purpose::ddp);
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<nn::Module> module, const dist::ProcessGroup& group,
                                                 const Options& options)
    : module_(std::move(module)) {
  if (!module_) fail(Kind::argument, "DistributedDataParallel: the module is null");
  detail::check_options(options);
  detail::check_one_device(module_->named_parameters());
  const auto channel = ddp_channel(group);
  detail::check_same_parameters(module_->named_parameters(), channel);
  const auto parameters = module_->parameters();
  detail::broadcast_coalesced(parameters, 0, channel, "initial parameters");
  for (const Tensor& p : parameters) p.raise_version();
  if (options.broadcast_buffers != BroadcastBuffers::never) {
    detail::broadcast_coalesced(module_->buffers(), 0, channel, "initial buffers");
    for (const Tensor& b : module_->buffers()) b.raise_version();
  }
  register_module("module", module_);
  impl_ = std::make_unique<Impl>(module_, channel, options);
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::broadcast_buffers() {
  const auto buffers = module_->buffers();
  detail::broadcast_coalesced(buffers, 0, impl_->group, "buffers");
  for (const Tensor& b : buffers) b.raise_version();
}

void broadcast_buffers(const nn::Module& module, const dist::ProcessGroup& group) {
  const auto buffers = module.buffers();
  detail::broadcast_coalesced(buffers, 0, ddp_channel(group), "buffers");
  for (const Tensor& b : buffers) b.raise_version();
}

Tensor DistributedDataParallel::forward(const Tensor& x) {
  return run([&] { return std::vector<Tensor>{module_->forward(x)}; }).front();
}

std::vector<Tensor> DistributedDataParallel::run(const std::function<std::vector<Tensor>()>& forward) {
  if (!grad_mode()) return forward();
  impl_->begin_iteration();
  auto outputs = forward();
  impl_->after_forward(outputs);
  return outputs;
}

nn::Module& DistributedDataParallel::module() const { return *module_; }

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(&ddp) { ++ddp.impl_->no_sync_depth; }

DistributedDataParallel::NoSync::~NoSync() {
  if (ddp_ != nullptr) --ddp_->impl_->no_sync_depth;
}

const BucketPlan& DistributedDataParallel::bucket_plan() const { return impl_->plan; }

bool DistributedDataParallel::restore_bucket_plan(const BucketPlan& plan) {
  impl_->refresh_active();
  impl_->phase = Impl::Phase::idle;
  if (plan.empty() || !impl_->fits(plan)) return false;
  impl_->adopt(plan);
  return true;
}

void DistributedDataParallel::rebuild_buckets() {
  impl_->phase = Impl::Phase::idle;
  impl_->forget_plan();
}

const std::vector<Tensor>& DistributedDataParallel::allreduce_buffers() const { return impl_->retained; }

const std::vector<DistributedDataParallel::BucketTiming>& DistributedDataParallel::last_timings() const {
  return impl_->resolved_timings();
}

std::optional<double> DistributedDataParallel::last_exposed_s() const { return impl_->exposed(); }

}  // namespace apex::parallel
