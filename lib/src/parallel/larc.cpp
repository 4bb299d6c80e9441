// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/larc.hpp"

#include <cmath>

#include "../optimizers/global_norm.hpp"
#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::parallel {

namespace {

using optimizers::ParamGroup;
using optimizers::StepScaling;

/// Puts the weight decay of all groups to 0, and back again, whatever happens between.
class WithoutDecay {
 public:
  explicit WithoutDecay(optimizers::Optimizer& optimizer) : optimizer_(optimizer) {
    for (std::size_t g = 0; g < optimizer.groups().size(); ++g) {
      const auto& hyper = optimizer.groups()[g].hyper;
      const auto found = hyper.find("weight_decay");
      if (found == hyper.end()) continue;
      decay_.emplace_back(g, found->second);
      optimizer.set_hyper(g, "weight_decay", 0.0);
    }
  }
  WithoutDecay(const WithoutDecay&) = delete;
  WithoutDecay& operator=(const WithoutDecay&) = delete;
  ~WithoutDecay() {
    for (const auto& [g, value] : decay_) optimizer_.set_hyper(g, "weight_decay", value);  // it was valid before
  }

 private:
  optimizers::Optimizer& optimizer_;
  std::vector<std::pair<std::size_t, optimizers::HyperValue>> decay_;
};

/// Parameters of one device and dtype whose gradients share a dtype.
struct Part {
  std::vector<Tensor> params, grads;
};

std::vector<Part> parts_of(const ParamGroup& group) {
  std::vector<Part> parts;
  for (const auto& p : group.params) {
    const Tensor g = grad(p);
    if (!g.defined()) continue;
    Part* part = nullptr;
    for (auto& candidate : parts)
      if (candidate.params[0].device() == p.device() && candidate.params[0].dtype() == p.dtype() &&
          candidate.grads[0].dtype() == g.dtype())
        part = &candidate;
    if (part == nullptr) part = &parts.emplace_back();
    part->params.push_back(p);
    part->grads.push_back(g);
  }
  return parts;
}

/// Arithmetic on one number for each tensor, on the device. Results are new tensors.
class Row {
 public:
  Row(Tensor values) : t_(std::move(values)) {}  // NOLINT: a row of values is what it is
  static Row filled(const Row& like, double value) {
    return full(like.t_.sizes(), value, like.t_.dtype(), like.t_.device());
  }
  /// One number from anywhere, repeated.
  static Row repeated(const Row& like, const Tensor& number) {
    const Tensor one = empty({1}, like.t_.dtype(), like.t_.device());
    optimizers::write_near(one, views::reshape(number, {1}));
    return views::expand(one, like.t_.sizes());
  }

  Row with(kernels::BinaryOp op, const Row& other) const {
    const Row out = fresh();
    kernels::binary(t_.context(), out.t_.view(), t_.view(), other.t_.view(), op);
    return out;
  }
  Row scaled(double factor, double shift = 0.0) const {
    const Row out = fresh();
    kernels::scale_shift(t_.context(), out.t_.view(), t_.view(), factor, shift);
    return out;
  }
  /// this where `chosen` is not 0, else `other`.
  Row where_not_zero(const Row& chosen, const Row& other) const {
    const Tensor zero = full(t_.sizes(), 0.0, t_.dtype(), t_.device()),
                 is = empty(t_.sizes(), DType::boolean, t_.device());
    kernels::compare(t_.context(), is.view(), chosen.t_.view(), zero.view(), kernels::CompareOp::ne);
    const Row out = fresh();
    kernels::where(t_.context(), out.t_.view(), is.view(), t_.view(), other.t_.view());
    return out;
  }
  /// Element i, stretched over a tensor's sizes, in its dtype.
  Tensor stretched(std::size_t i, const Tensor& over, DType dtype) const {
    const Tensor one = empty({1}, dtype, t_.device());
    kernels::copy(t_.context(), one.view(), views::narrow(t_, 0, static_cast<std::int64_t>(i), 1).view());
    return views::expand(views::reshape(one, Dims::filled(over.dim(), 1)), over.sizes());
  }

 private:
  Row fresh() const { return empty(t_.sizes(), t_.dtype(), t_.device()); }
  Tensor t_;
};

/// 2-norms of the single tensors, in `dtype`.
Row norms(const std::vector<Tensor>& tensors, DType dtype) {
  const Device device = tensors[0].device();
  const DType of = tensors[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor flag = zeros({1}, DType::i32, device), all = empty({1}, of, device);
  const Tensor each = empty({static_cast<std::int64_t>(tensors.size())}, of, device);
  std::vector<ConstView> list;
  for (const auto& t : tensors) list.push_back(t.view());
  kernels::multi_tensor_l2norm(Context::current(device), flag.view(), all.view(), each.view(), list);
  if (of == dtype) return each;
  const Tensor out = empty(each.sizes(), dtype, device);
  kernels::copy(out.context(), out.view(), each.view());
  return out;
}

}  // namespace

LARC::LARC(optimizers::Optimizer& optimizer, const LARCOptions& options) : optimizer_(optimizer), options_(options) {
  if (optimizer.in_parts())
    fail(Kind::unsupported, concat("LARC: ", optimizer.type(),
                                   " shards its parameters over ranks, and LARC needs the "
                                   "norms of whole ones; use an optimizer that is not sharded"));
  for (const auto& [name, value] : {std::pair("trust_coefficient", options.trust_coefficient), {"eps", options.eps}})
    if (!(value >= 0.0) || std::isinf(value))
      fail(Kind::argument, concat("LARC: ", name, ' ', value, " is not a finite number >= 0"));
  optimizer_.set_wrapper("LARC");
}

LARC::~LARC() { optimizer_.set_wrapper({}); }

Tensor LARC::step(const std::function<Tensor()>& closure) {
  Tensor loss;
  if (closure) {
    const EnableGradGuard grad_on;
    loss = closure();
  }
  step(StepScaling{});
  return loss;
}

void LARC::step(const StepScaling& scaling) {
  const auto& found = scaling.found_inf;
  const bool skips = found.defined() && found.device().is_cpu() && found.item() != 0.0;
  if (!skips) {
    const NoGradGuard no_grad;
    for (const auto& group : optimizer_.groups()) adapt(group, scaling);
  }
  const WithoutDecay guard(optimizer_);
  optimizer_.step(scaling);
}

void LARC::adapt(const ParamGroup& group, const StepScaling& scaling) const {
  using enum kernels::BinaryOp;
  const double wd = group.hyper.contains("weight_decay") ? group.number("weight_decay") : 0.0;
  for (const auto& part : parts_of(group)) {
    const Device device = part.params[0].device();
    const auto ctx = Context::current(device);
    const DType dtype = part.params[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Row p = norms(part.params, dtype);
    Row g = norms(part.grads, dtype).scaled(scaling.grad_scale), scale = Row::filled(p, scaling.grad_scale);
    if (scaling.inv_scale.defined()) {
      const Row inv_scale = Row::repeated(p, scaling.inv_scale);
      g = g.with(mul, inv_scale);
      scale = scale.with(mul, inv_scale);
    }
    Row a = p.with(div, g.with(add, p.scaled(wd)).scaled(1.0, options_.eps)).scaled(options_.trust_coefficient);
    if (options_.clip) {
      const Row lr =
          group.lr_on_device.defined() ? Row::repeated(p, group.lr_on_device) : Row::filled(p, group.number("lr"));
      a = a.with(div, lr).with(minimum, Row::filled(p, 1.0)).where_not_zero(lr, Row::filled(p, 1.0));
    }
    // What wd * p is multiplied by: the gradient is still scaled.
    Row b = a.scaled(wd).with(div, scale);
    const Row one = Row::filled(p, 1.0), none = Row::filled(p, 0.0), both = p.with(minimum, g);
    a = a.where_not_zero(both, one);
    b = b.where_not_zero(both, none);
    if (scaling.found_inf.defined()) {
      const Row skipped = Row::repeated(p, scaling.found_inf);
      a = one.where_not_zero(skipped, a);
      b = none.where_not_zero(skipped, b);
    }
    for (std::size_t i = 0; i < part.grads.size(); ++i) {
      const Tensor& gradient = part.grads[i];
      const Tensor &param = part.params[i], sum = empty_like(gradient, dtype), decay = empty_like(gradient, dtype);
      kernels::copy(ctx, sum.view(), gradient.view());  // 16-bit gradients are rounded once
      kernels::binary(ctx, sum.view(), sum.view(), a.stretched(i, gradient, dtype).view(), mul);
      if (wd != 0.0) {
        kernels::copy(ctx, decay.view(), param.view());
        kernels::binary(ctx, decay.view(), decay.view(), b.stretched(i, gradient, dtype).view(), mul);
        kernels::accumulate(ctx, sum.view(), decay.view());
      }
      kernels::copy(ctx, gradient.view(), sum.view());
      gradient.raise_version();
    }
  }
}

}  // namespace apex::parallel
