// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/amp/loss_scaler.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::amp {

namespace {

constexpr double kLeast = 0x1p-126;  // the reciprocal of anything smaller may be infinite in f32

void check_scale(Kind kind, const char* name, double value) {
  if (!(value > 0.0) || std::isinf(value))
    fail(kind, concat("LossScaler: ", name, ' ', value, " is not a finite number above 0"));
}

constexpr float kHopeless = 50;  // skips in a row

/// A number that a device may write at any time. Its memory goes back after the device is done.
std::shared_ptr<Tensor> readable_number(Device writer) {
  if (writer.is_cpu()) return std::make_shared<Tensor>(zeros({1}, DType::f32));
#ifdef APEX_HAS_CUDA
  const Tensor pinned = Tensor::from_storage(cuda::pinned_pool::storage(sizeof(float)), DType::f32, {1}, {1});
  *pinned.data<float>() = 0;
  return {new Tensor(pinned), [writer](Tensor* number) {
            try {
              cuda::synchronize(Context::current(writer));
            } catch (const Error&) {  // a broken device says so at the next call
            }
            delete number;
          }};
#else
  throw_not_built("LossScaler", writer);
#endif
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options, Device device) : options_(options) {
  check_scale(Kind::argument, "init_scale", options.init_scale);
  check_scale(Kind::argument, "max_loss_scale", options.max_loss_scale);
  if (options.loss_scale) check_scale(Kind::argument, "loss_scale", *options.loss_scale);
  if (options.min_loss_scale) {
    check_scale(Kind::argument, "min_loss_scale", *options.min_loss_scale);
    if (*options.min_loss_scale > options.max_loss_scale)
      fail(Kind::argument, concat("LossScaler: min_loss_scale ", *options.min_loss_scale, " is above max_loss_scale ",
                                  options.max_loss_scale));
  }
  if (!(options.scale_factor > 1.0) || std::isinf(options.scale_factor))
    fail(Kind::argument, concat("LossScaler: scale_factor ", options.scale_factor, " is not a finite number above 1"));
  for (const auto& [name, value] :
       {std::pair("scale_window", options.scale_window), {"hysteresis", options.hysteresis}})
    if (value < 1 || value > std::numeric_limits<std::int32_t>::max())
      fail(Kind::argument, concat("LossScaler: ", name, ' ', value, " is not a count above 0"));
  for (Tensor* t : {&scale_, &inverse_, &found_inf_, &last_, &skips_}) *t = zeros({1}, DType::f32, device);
  for (Tensor* t : {&growth_, &hysteresis_}) *t = zeros({1}, DType::i32, device);
  seen_ = readable_number(device);
  write(options.loss_scale ? *options.loss_scale
                           : std::max(least(), std::min(options.max_loss_scale, options.init_scale)),
        0);
}

double LossScaler::least() const { return std::max(options_.min_loss_scale.value_or(0.0), kLeast); }

void LossScaler::write(double scale, std::int64_t unskipped) {
  const auto ctx = scale_.context();
  kernels::fill(ctx, scale_.view(), scale);
  kernels::fill(ctx, growth_.view(), static_cast<double>(unskipped));
  kernels::fill(ctx, hysteresis_.view(), static_cast<double>(options_.hysteresis));
  kernels::fill(ctx, skips_.view(), 0.0);
  kernels::unary(ctx, inverse_.view(), scale_.view(), kernels::UnaryOp::reciprocal);
}

Tensor LossScaler::scale(const Tensor& loss) const {
  const Tensor wide = loss.dtype() == DType::f32 ? loss : nn::functional::cast(loss, DType::f32);
  // A copy: the backward reads it, maybe after update() has written into the record.
  return nn::functional::mul(wide, clone(views::reshape(scale_, Dims::filled(loss.dim(), 1))));
}

void LossScaler::check(const std::vector<Tensor>& gradients) {
  if (!dynamic()) return;
  const NoGradGuard no_grad;
  std::vector<Tensor> rest;
  for (const auto& g : gradients)
    if (g.defined()) rest.push_back(g);
  while (!rest.empty()) {
    const Device device = rest.front().device();
    const DType dtype = rest.front().dtype();
    std::vector<ConstView> list;
    std::vector<Tensor> others;
    for (const auto& g : rest) {
      if (g.device() == device && g.dtype() == dtype)
        list.push_back(g.view());
      else
        others.push_back(g);
    }
    const auto ctx = Context::current(device);
    const Tensor flag = zeros({1}, DType::i32, device);
    const Tensor norm = empty({1}, dtype == DType::f64 ? DType::f64 : DType::f32, device);
    kernels::multi_tensor_l2norm(ctx, flag.view(), norm.view(), View(), list);
    const Tensor near = nn::functional::to(flag, found_inf_.device()), found = zeros_like(found_inf_);
    kernels::copy(found.context(), found.view(), near.view());
    kernels::binary(found.context(), found_inf_.view(), found_inf_.view(), found.view(), kernels::BinaryOp::maximum);
    rest = std::move(others);
  }
}

apex::optimizers::StepScaling LossScaler::scaling() const {
  return {.found_inf = dynamic() ? found_inf_ : Tensor(), .inv_scale = inverse_};
}

void LossScaler::warn_of_skips() {
  const float skips = std::atomic_ref<float>(*seen_->data<float>()).load(std::memory_order_relaxed);
  if (skips >= kHopeless && !warned_)
    log_warning(
        concat("LossScaler: the last ", skips,
               " steps were skipped: gradients are not finite whatever the scale; look into the loss and its input"));
  warned_ = skips >= kHopeless;
}

void LossScaler::update() {
  warn_of_skips();
  const auto ctx = scale_.context();
  kernels::copy(ctx, last_.view(), found_inf_.view());
  const bool moves = dynamic();
  if (moves) {  // found_inf is 0 or 1
    kernels::binary(ctx, skips_.view(), skips_.view(), found_inf_.view(), kernels::BinaryOp::add);
    kernels::binary(ctx, skips_.view(), skips_.view(), found_inf_.view(), kernels::BinaryOp::mul);
    kernels::transfer(ctx, seen_->view(), skips_.view());
  }
  kernels::update_scale_hysteresis(ctx, scale_.view(), growth_.view(), hysteresis_.view(), found_inf_.view(),
                                   moves ? options_.scale_factor : 1.0, moves ? 1.0 / options_.scale_factor : 1.0,
                                   moves ? options_.scale_window : std::numeric_limits<std::int32_t>::max(),
                                   options_.hysteresis, moves ? least() : 0.0,
                                   moves ? options_.max_loss_scale : std::numeric_limits<float>::max());
  kernels::unary(ctx, inverse_.view(), scale_.view(), kernels::UnaryOp::reciprocal);
  kernels::fill(ctx, found_inf_.view(), 0.0);
}

double LossScaler::loss_scale() const { return scale_.item(); }
std::int64_t LossScaler::unskipped() const { return static_cast<std::int64_t>(growth_.item()); }
bool LossScaler::last_overflow() const { return last_.item() != 0.0; }

void LossScaler::set_loss_scale(double scale) {
  check_scale(Kind::argument, "loss_scale", scale);
  write(scale, unskipped());
}

void LossScaler::load_state_dict(const LossScalerState& state) {
  check_scale(Kind::data, "loss_scale", state.loss_scale);
  if (state.unskipped < 0 || state.unskipped > std::numeric_limits<std::int32_t>::max())
    fail(Kind::data, concat("LossScaler: unskipped ", state.unskipped, " is no count of steps"));
  write(state.loss_scale, state.unskipped);
}

}  // namespace apex::amp
