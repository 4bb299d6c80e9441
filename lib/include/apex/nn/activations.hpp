// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/nn/functional.hpp"
#include "apex/nn/module.hpp"

/// Activation functions as layers. Formulas, corners and limits: apex/kernels/activation.hpp.
namespace apex::nn {

class GELU : public Module {
 public:
  explicit GELU(functional::GeluForm form = functional::GeluForm::exact) : form_(form) {}
  Tensor forward(const Tensor& x) override { return functional::gelu(x, form_); }
  std::string_view kind() const override { return "GELU"; }

 private:
  functional::GeluForm form_;
};

class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return functional::silu(x); }
  std::string_view kind() const override { return "SiLU"; }
};

class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override { return functional::sigmoid(x); }
  std::string_view kind() const override { return "Sigmoid"; }
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return functional::tanh(x); }
  std::string_view kind() const override { return "Tanh"; }
};

class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) override { return functional::leaky_relu(x, slope_); }
  std::string_view kind() const override { return "LeakyReLU"; }

 private:
  double slope_;
};

class ELU : public Module {
 public:
  explicit ELU(double alpha = 1.0) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) override { return functional::elu(x, alpha_); }
  std::string_view kind() const override { return "ELU"; }

 private:
  double alpha_;
};

class Softplus : public Module {
 public:
  explicit Softplus(double beta = 1.0, double threshold = 20.0) : beta_(beta), threshold_(threshold) {}
  Tensor forward(const Tensor& x) override { return functional::softplus(x, beta_, threshold_); }
  std::string_view kind() const override { return "Softplus"; }

 private:
  double beta_, threshold_;
};

class Hardtanh : public Module {
 public:
  explicit Hardtanh(double low = -1.0, double high = 1.0) : low_(low), high_(high) {}
  Tensor forward(const Tensor& x) override { return functional::hardtanh(x, low_, high_); }
  std::string_view kind() const override { return "Hardtanh"; }

 private:
  double low_, high_;
};

class LogSigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override { return functional::log_sigmoid(x); }
  std::string_view kind() const override { return "LogSigmoid"; }
};

class Softmax : public Module {
 public:
  explicit Softmax(int dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return functional::softmax(x, dim_); }
  std::string_view kind() const override { return "Softmax"; }

 private:
  int dim_;
};

class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return functional::log_softmax(x, dim_); }
  std::string_view kind() const override { return "LogSoftmax"; }

 private:
  int dim_;
};

}  // namespace apex::nn
