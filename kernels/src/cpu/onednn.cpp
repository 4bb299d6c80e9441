// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "onednn.hpp"

#include <omp.h>

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace apex::kernels::cpu::onednn {
namespace {

using dnnl::memory;

Kind kind_of(dnnl_status_t status) {
  switch (status) {
    case dnnl_out_of_memory: return Kind::exhausted;
    case dnnl_invalid_arguments: return Kind::argument;
    case dnnl_unimplemented: return Kind::unsupported;
    default: return Kind::state;
  }
}

/// Runs f and turns oneDNN's exception into ours.
template <class F>
decltype(auto) guarded(const char* what, F&& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    throw Error(kind_of(e.status), Domain::dnnl, e.status, concat("oneDNN: ", what, " failed: ", e.what()));
  }
}

const dnnl::engine& cpu_engine() {
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& cpu_stream() {
  thread_local dnnl::stream stream(cpu_engine());
  return stream;
}

enum class Pass : std::int64_t { forward, backward_data, backward_weight };

/// A convolution's shapes and layouts: all that decides which primitive fits.
struct Problem {
  Pass pass;
  Dims x, w, y;                 // NCHW and KCRS sizes
  bool x_last, w_last, y_last;  // channels-last in memory
  bool bias;
  Conv2dOptions options;

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> k{
        static_cast<std::int64_t>(pass), x_last, w_last, y_last, bias, options.groups, omp_get_max_threads()};
    for (const auto* dims : {&x, &w, &y}) k.insert(k.end(), dims->begin(), dims->end());
    for (const auto* pair : {&options.stride, &options.padding, &options.dilation})
      k.insert(k.end(), pair->begin(), pair->end());
    return k;
  }
};

memory::dims to_dims(const Dims& dims) { return {dims.begin(), dims.end()}; }
memory::dims to_dims(const std::array<std::int64_t, 2>& pair) { return {pair[0], pair[1]}; }

memory::desc activation_desc(const Dims& sizes, bool last) {
  return {to_dims(sizes), memory::data_type::f32, last ? memory::format_tag::nhwc : memory::format_tag::nchw};
}

/// [groups, K/groups, C/groups, R, S] when there are groups, else [K, C, R, S].
memory::dims weight_dims(const Problem& p) {
  memory::dims dims = to_dims(p.w);
  if (p.options.groups == 1) return dims;
  dims[0] /= p.options.groups;
  dims.insert(dims.begin(), p.options.groups);
  return dims;
}

/// As the user keeps them.
memory::desc weight_desc(const Problem& p) {
  const Dims strides = strides_for(p.w, p.w_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
  memory::dims s = to_dims(strides);
  if (p.options.groups > 1) s.insert(s.begin(), strides[0] * (p.w[0] / p.options.groups));
  return {weight_dims(p), memory::data_type::f32, s};
}

/// A primitive and the layout it wants its weights in.
struct Plan {
  dnnl::primitive conv, reorder;  // reorder: user's weights to the primitive's, or back for their gradient
  memory::desc x, y, weights, user_weights, bias;
  bool reorders = false;
  std::size_t scratch_bytes = 0, reorder_scratch_bytes = 0;
};

/// The three kinds of primitive descriptor, in either version's words.
template <class Primitive>
auto make_descriptor(const Problem& p, const memory::desc& any_weights, const memory::desc& x, const memory::desc& y,
                     const memory::desc& bias, const dnnl::primitive_attr& attr) {
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const memory::dims strides = to_dims(p.options.stride), pad = to_dims(p.options.padding);
  const memory::dims dilates{p.options.dilation[0] - 1, p.options.dilation[1] - 1};
  constexpr bool forward = std::is_same_v<Primitive, dnnl::convolution_forward>;
  constexpr bool data = std::is_same_v<Primitive, dnnl::convolution_backward_data>;
  using Descriptor = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  const auto forward_descriptor = [&](const dnnl::primitive_attr& a) {
    return dnnl::convolution_forward::primitive_desc(cpu_engine(), dnnl::prop_kind::forward_training, algorithm, x,
                                                     any_weights, bias, y, strides, dilates, pad, pad, a);
  };
  if constexpr (forward)
    return forward_descriptor(attr);
  else if constexpr (data)
    return Descriptor(cpu_engine(), algorithm, x, any_weights, y, strides, dilates, pad, pad, forward_descriptor({}),
                      attr);
  else
    return Descriptor(cpu_engine(), algorithm, x, any_weights, bias, y, strides, dilates, pad, pad,
                      forward_descriptor({}), attr);
#else
  const auto forward_descriptor = [&](const dnnl::primitive_attr& a) {
    return dnnl::convolution_forward::primitive_desc(
        dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, algorithm, x, any_weights, bias, y, strides,
                                        dilates, pad, pad),
        a, cpu_engine());
  };
  if constexpr (forward)
    return forward_descriptor(attr);
  else if constexpr (data)
    return Descriptor({algorithm, x, any_weights, y, strides, dilates, pad, pad}, attr, cpu_engine(),
                      forward_descriptor({}));
  else
    return Descriptor({algorithm, x, any_weights, bias, y, strides, dilates, pad, pad}, attr, cpu_engine(),
                      forward_descriptor({}));
#endif
}

std::shared_ptr<const Plan> make_plan(const Problem& p) {
  auto plan = std::make_shared<Plan>();
  plan->x = activation_desc(p.x, p.x_last);
  plan->y = activation_desc(p.y, p.y_last);
  plan->user_weights = weight_desc(p);
  if (p.bias) plan->bias = memory::desc({p.w[0]}, memory::data_type::f32, memory::format_tag::a);
  const memory::desc any(weight_dims(p), memory::data_type::f32, memory::format_tag::any);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto finish = [&](const auto& descriptor, auto&& weights) {
    plan->weights = weights(descriptor);
    plan->scratch_bytes = descriptor.scratchpad_desc().get_size();
  };
  switch (p.pass) {
    case Pass::forward: {
      const auto d = make_descriptor<dnnl::convolution_forward>(p, any, plan->x, plan->y, plan->bias, attr);
      finish(d, [](const auto& pd) { return pd.weights_desc(); });
      plan->conv = dnnl::convolution_forward(d);
      break;
    }
    case Pass::backward_data: {
      const auto d = make_descriptor<dnnl::convolution_backward_data>(p, any, plan->x, plan->y, plan->bias, attr);
      finish(d, [](const auto& pd) { return pd.weights_desc(); });
      plan->conv = dnnl::convolution_backward_data(d);
      break;
    }
    case Pass::backward_weight: {
      const auto d = make_descriptor<dnnl::convolution_backward_weights>(p, any, plan->x, plan->y, plan->bias, attr);
      finish(d, [](const auto& pd) { return pd.diff_weights_desc(); });
      plan->conv = dnnl::convolution_backward_weights(d);
      break;
    }
  }
  plan->reorders = plan->weights != plan->user_weights;
  if (plan->reorders) {
    const bool back = p.pass == Pass::backward_weight;
    const dnnl::reorder::primitive_desc d(cpu_engine(), back ? plan->weights : plan->user_weights, cpu_engine(),
                                          back ? plan->user_weights : plan->weights, attr);
    plan->reorder_scratch_bytes = d.scratchpad_desc().get_size();
    plan->reorder = dnnl::reorder(d);
  }
  return plan;
}

/// Plans by problem. Training sees few shapes; a program that sees many starts over after kMost.
std::shared_ptr<const Plan> plan_for(const Problem& p) {
  constexpr std::size_t kMost = 1024;
  static std::mutex mutex;
  static auto* const plans = new std::map<std::vector<std::int64_t>, std::shared_ptr<const Plan>>;
  auto key = p.key();
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans->find(key); found != plans->end()) return found->second;
  }
  auto plan = make_plan(p);
  const std::lock_guard lock(mutex);
  if (plans->size() >= kMost) plans->clear();
  return plans->emplace(std::move(key), std::move(plan)).first->second;
}

memory wrap(const memory::desc& desc, const void* data) { return {desc, cpu_engine(), const_cast<void*>(data)}; }

memory scratch_memory(std::size_t bytes, void* data) {
  const memory::desc desc({static_cast<std::int64_t>(bytes)}, memory::data_type::u8, memory::format_tag::a);
  return wrap(desc, data);
}

/// Workspace of a plan: the weights in its layout, then its scratchpads.
struct Scratch {
  Scratch(const Context& ctx, const Plan& plan)
      : weight_bytes(plan.reorders ? (plan.weights.get_size() + 63) / 64 * 64 : 0),
        conv_bytes(plan.scratch_bytes),
        reorder_bytes(plan.reorder_scratch_bytes),
        workspace(ctx.workspace(weight_bytes + std::max(conv_bytes, reorder_bytes))) {}
  char* weights() const { return workspace.as<char>(); }
  char* pad() const { return workspace.as<char>() + weight_bytes; }

  std::size_t weight_bytes, conv_bytes, reorder_bytes;
  Workspace workspace;
};

void run_reorder(const Plan& plan, const Scratch& s, const memory& from, const memory& to) {
  plan.reorder.execute(
      cpu_stream(),
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratch_memory(s.reorder_bytes, s.pad())}});
}

bool is_last(const ConstView& v, const ConstView& partner) {
  const bool row_major = v.is_contiguous(), last = v.is_contiguous(MemoryFormat::channels_last);
  return last && (!row_major || !partner.is_contiguous());  // where both match, as the partner lies
}

Problem problem_of(Pass pass, const ConstView& x, const ConstView& w, const ConstView& y, bool bias,
                   const Conv2dOptions& options) {
  return {pass, x.sizes, w.sizes, y.sizes, is_last(x, y), !w.is_contiguous(), is_last(y, x), bias, options};
}

/// The weights in the plan's layout: the user's own, or a reordered copy.
memory prepared_weights(const Plan& plan, const Scratch& s, const void* data) {
  const memory user = wrap(plan.user_weights, data);
  if (!plan.reorders) return user;
  const memory own = wrap(plan.weights, s.weights());
  run_reorder(plan, s, user, own);
  return own;
}

}  // namespace

void conv2d_forward(const Context& ctx, const View& y, const ConstView& x, const ConstView& w, const ConstView& bias,
                    const Conv2dOptions& options) {
  guarded("convolution", [&] {
    const auto plan = plan_for(problem_of(Pass::forward, x, w, y, bias.defined(), options));
    const Scratch s(ctx, *plan);
    const memory weights = prepared_weights(*plan, s, w.data);
    std::unordered_map<int, memory> args{{DNNL_ARG_SRC, wrap(plan->x, x.data)},
                                         {DNNL_ARG_WEIGHTS, weights},
                                         {DNNL_ARG_DST, wrap(plan->y, y.data)},
                                         {DNNL_ARG_SCRATCHPAD, scratch_memory(s.conv_bytes, s.pad())}};
    if (bias.defined()) args.emplace(DNNL_ARG_BIAS, wrap(plan->bias, bias.data));
    plan->conv.execute(cpu_stream(), args);
    cpu_stream().wait();
  });
}

void conv2d_backward_data(const Context& ctx, const View& dx, const ConstView& dy, const ConstView& w,
                          const Conv2dOptions& options) {
  guarded("gradient of a convolution's input", [&] {
    const auto plan = plan_for(problem_of(Pass::backward_data, dx, w, dy, false, options));
    const Scratch s(ctx, *plan);
    const memory weights = prepared_weights(*plan, s, w.data);
    plan->conv.execute(cpu_stream(), {{DNNL_ARG_DIFF_DST, wrap(plan->y, dy.data)},
                                      {DNNL_ARG_WEIGHTS, weights},
                                      {DNNL_ARG_DIFF_SRC, wrap(plan->x, dx.data)},
                                      {DNNL_ARG_SCRATCHPAD, scratch_memory(s.conv_bytes, s.pad())}});
    cpu_stream().wait();
  });
}

void conv2d_backward_weight(const Context& ctx, const View& dw, const View& db, const ConstView& dy, const ConstView& x,
                            const Conv2dOptions& options) {
  guarded("gradient of a convolution's weights", [&] {
    const auto plan = plan_for(problem_of(Pass::backward_weight, x, dw, dy, db.defined(), options));
    const Scratch s(ctx, *plan);
    const memory user = wrap(plan->user_weights, dw.data);
    const memory weights = plan->reorders ? wrap(plan->weights, s.weights()) : user;
    std::unordered_map<int, memory> args{{DNNL_ARG_SRC, wrap(plan->x, x.data)},
                                         {DNNL_ARG_DIFF_DST, wrap(plan->y, dy.data)},
                                         {DNNL_ARG_DIFF_WEIGHTS, weights},
                                         {DNNL_ARG_SCRATCHPAD, scratch_memory(s.conv_bytes, s.pad())}};
    if (db.defined()) args.emplace(DNNL_ARG_DIFF_BIAS, wrap(plan->bias, db.data));
    plan->conv.execute(cpu_stream(), args);
    if (plan->reorders) run_reorder(*plan, s, weights, user);
    cpu_stream().wait();
  });
}

void sgemm(const SgemmShape& g, float* c, const float* a, const float* b) {
  const auto status = static_cast<dnnl_status_t>(dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m,
                                                            g.n, g.k, g.alpha, a, g.lda, b, g.ldb, g.beta, c, g.ldc));
  if (status != dnnl_success)
    throw Error(kind_of(status), Domain::dnnl, status,
                concat("oneDNN: matrix product ", g.m, " x ", g.k, " x ", g.n, " failed"));
}

}  // namespace apex::kernels::cpu::onednn
