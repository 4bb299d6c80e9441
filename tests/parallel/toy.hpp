// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/collectives/session.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/module.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "support/tensors.hpp"

namespace apex::test {

/// On the tests' device.
inline Tensor filled(const Dims& sizes, double value, DType dtype = DType::f32) {
  return full(sizes, value, dtype, device());
}

/// A module that is nothing but parameters (and maybe buffers).
class Toy : public nn::Module {
 public:
  struct Parameter {
    std::string name;
    std::int64_t numel = 1;
    DType dtype = DType::f32;
  };
  explicit Toy(const std::vector<Parameter>& parameters, double value = 1.0) {
    for (const auto& p : parameters) tensors.push_back(register_parameter(p.name, filled({p.numel}, value, p.dtype)));
  }
  Tensor buffer(const std::string& name, const Tensor& value) { return register_buffer(name, value); }

  std::vector<Tensor> tensors;  // in registration order
};

inline std::shared_ptr<Toy> toy(const std::vector<Toy::Parameter>& parameters, double value = 1.0) {
  return std::make_shared<Toy>(parameters, value);
}

/// An output (f64, one element) whose backward hands `gradient` to the parameter, after a pause.
inline Tensor feed(const Tensor& parameter, double gradient, std::chrono::milliseconds pause = {}) {
  return record(
      filled({1}, 0.0, DType::f64),
      {.name = "feed", .inputs = {parameter}, .backward = [parameter, gradient, pause](const Tensor&) -> Gradients {
         if (pause.count() > 0) std::this_thread::sleep_for(pause);
         return {filled(parameter.sizes(), gradient, parameter.dtype())};
       }});
}

/// A parameter and the gradient it gets.
using Fed = std::pair<Tensor, double>;

/// A loss whose backward gives the gradients in the order of the list.
inline Tensor loss_of(const std::vector<Fed>& fed, std::chrono::milliseconds pause = {}) {
  std::vector<Tensor> outputs;
  for (auto it = fed.rbegin(); it != fed.rend(); ++it) outputs.push_back(feed(it->first, it->second, pause));
  Tensor loss = outputs.front();
  for (std::size_t i = 1; i < outputs.size(); ++i) loss = nn::functional::add(loss, outputs[i]);
  return loss;
}

/// Forward through DDP and backward.
inline void step(parallel::DistributedDataParallel& ddp, const std::vector<Fed>& fed,
                 std::chrono::milliseconds pause = {}) {
  backward(ddp.run([&] { return std::vector<Tensor>{loss_of(fed, pause)}; }).front());
}

/// All elements of the gradient are `want`; the first that is not is reported.
inline ::testing::AssertionResult gradient_is(const Tensor& parameter, double want, double tolerance = 0) {
  if (!grad(parameter).defined()) return ::testing::AssertionFailure() << "no gradient";
  for (const double g : to_f64(grad(parameter)))
    if (!(std::abs(g - want) <= tolerance) && g != want)
      return ::testing::AssertionFailure() << "gradient " << g << ", want " << want;
  return ::testing::AssertionSuccess();
}

inline std::string thrown(const std::function<void()>& body, Kind kind) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace apex::test
