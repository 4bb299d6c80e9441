// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/nn/functional.hpp"
#include "apex/nn/module.hpp"
#include "apex/random.hpp"

/// Layers. Weights are drawn on the host from a Generator when the layer is made (the default one unless given), in
/// f32, so a seed gives the same network at any thread or rank count and on any device.
namespace apex::nn {

/// Weights of a new layer: uniform in [-bound, bound], or normal with mean 0.
namespace init {
/// Overwrites `t` (f32 or f64, host). One draw from the generator each.
void uniform(const Tensor& t, double low, double high, Generator& generator = default_generator());
void normal(const Tensor& t, double mean, double stddev, Generator& generator = default_generator());
void constant(const Tensor& t, double value);

struct Fans {
  std::int64_t in, out;
};
/// Inputs and outputs of one unit of a weight [out, in, spatial...]. @throws Kind::argument below rank 2
Fans fans(const Tensor& weight);
/// He et al. 2015 (arXiv:1502.01852): uniform in +-gain * sqrt(3 / fan_in), gain = sqrt(2 / (1 + slope^2)).
void kaiming_uniform(const Tensor& weight, double slope, Generator& generator = default_generator());
/// He et al. 2015 for ReLU over fan_out: normal with stddev sqrt(2 / fan_out).
void kaiming_normal_fan_out(const Tensor& weight, Generator& generator = default_generator());
}  // namespace init

/// y = conv2d(x, weight) + bias. weight [out, in / groups, kh, kw], bias [out].
/// New: weight and bias uniform in +-1 / sqrt(fan_in), as PyTorch draws them.
class Conv2d : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    std::array<std::int64_t, 2> kernel = {1, 1};
    std::array<std::int64_t, 2> stride = {1, 1};
    std::array<std::int64_t, 2> padding = {0, 0};
    std::array<std::int64_t, 2> dilation = {1, 1};
    std::int64_t groups = 1;
    bool bias = true;
    bool draw = true;  ///< false: weight and bias are left uninitialised for the caller to fill
  };
  /// @throws Kind::argument for sizes below 1, or channels that groups does not divide
  explicit Conv2d(const Options& options, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Conv2d"; }
  const Options& options() const { return options_; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  ///< undefined without a bias

 private:
  Options options_;
  Tensor weight_, bias_;
};

/// y = conv_transpose2d(x, weight) + bias, from small images to large ones. weight [in, out / groups, kh, kw], bias
/// [out]. New: weight and bias uniform in +-1 / sqrt(out / groups * kh * kw), as PyTorch draws them.
class ConvTranspose2d : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    std::array<std::int64_t, 2> kernel = {1, 1};
    std::array<std::int64_t, 2> stride = {1, 1};
    std::array<std::int64_t, 2> padding = {0, 0};
    std::array<std::int64_t, 2> output_padding = {0, 0};
    std::array<std::int64_t, 2> dilation = {1, 1};
    std::int64_t groups = 1;
    bool bias = true;
    bool draw = true;  ///< false: weight and bias are left uninitialised for the caller to fill
  };
  /// @throws Kind::argument for sizes below 1, channels that groups does not divide, or an output_padding that is
  ///         neither less than the stride nor less than the dilation
  explicit ConvTranspose2d(const Options& options, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "ConvTranspose2d"; }
  const Options& options() const { return options_; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  ///< undefined without a bias

 private:
  Options options_;
  Tensor weight_, bias_;
};

/// y = conv1d(x, weight) + bias. weight [out, in / groups, k], bias [out]. New: as Conv2d.
class Conv1d : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    std::int64_t kernel = 1, stride = 1, padding = 0, dilation = 1, groups = 1;
    bool bias = true;
  };
  /// @throws Kind::argument for sizes below 1, or channels that groups does not divide
  explicit Conv1d(const Options& options, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Conv1d"; }
  const Options& options() const { return options_; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  ///< undefined without a bias

 private:
  Options options_;
  Tensor weight_, bias_;
};

/// y = conv_transpose1d(x, weight) + bias. weight [in, out / groups, k], bias [out]. New: as ConvTranspose2d.
class ConvTranspose1d : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    std::int64_t kernel = 1, stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
    bool bias = true;
  };
  /// @throws Kind::argument as ConvTranspose2d
  explicit ConvTranspose1d(const Options& options, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "ConvTranspose1d"; }
  const Options& options() const { return options_; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  ///< undefined without a bias

 private:
  Options options_;
  Tensor weight_, bias_;
};

/// y = x weight^T + bias. weight [out, in], bias [out]; x [..., in]. New: uniform in +-1 / sqrt(in).
class Linear : public Module {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, bool bias = true,
         Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Linear"; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_, bias_;
};

/// Rows of a table: indices [...] (i64 or i32) to [..., features]. weight [entries, features].
/// New: normal with mean 0 and standard deviation 1; the row of padding_idx is 0 and gets no gradient.
class Embedding : public Module {
 public:
  /// @throws Kind::argument for sizes below 1 or a padding_idx (negative from the end) outside of the entries
  Embedding(std::int64_t entries, std::int64_t features, std::optional<std::int64_t> padding_idx = {},
            Generator& generator = default_generator());
  Tensor forward(const Tensor& indices) override;
  std::string_view kind() const override { return "Embedding"; }
  const Tensor& weight() const { return weight_; }
  std::optional<std::int64_t> padding_idx() const { return padding_idx_; }  ///< from the front

 private:
  std::optional<std::int64_t> padding_idx_;
  Tensor weight_;
};

/// Normalises each channel (dimension 1 of rank 2 to 5) over batch and space (Ioffe, Szegedy 2015, arXiv:1502.03167).
///
/// Training: statistics of the batch; running_mean and running_var move towards them by `momentum` (variance unbiased),
/// num_batches_tracked counts. Without momentum the running statistics are the plain average of all batches seen.
/// Evaluation, or frozen: the running statistics are used and left alone. Without track_running_stats there are no
/// buffers and the batch's own statistics are always used.
///
/// This class takes any of these ranks; BatchNorm1d, 2d and 3d take theirs.
class BatchNorm : public Module {
 public:
  struct Options {
    double eps = 1e-5;
    std::optional<double> momentum = 0.1;
    bool affine = true;
    bool track_running_stats = true;
  };
  /// @throws Kind::argument for num_features < 1, eps <= 0, momentum outside [0, 1]
  explicit BatchNorm(std::int64_t num_features) : BatchNorm(num_features, Options{}) {}
  BatchNorm(std::int64_t num_features, const Options& options) : BatchNorm("BatchNorm", 2, 5, num_features, options) {}

  Tensor forward(const Tensor& x) override;
  /// relu(forward(x)) in one pass.
  virtual Tensor forward_relu(const Tensor& x);
  /// relu(forward(x) + residual) in one pass.
  virtual Tensor forward_add_relu(const Tensor& x, const Tensor& residual);

  std::string_view kind() const override { return kind_; }
  std::int64_t num_features() const { return features_; }
  const Options& options() const { return options_; }
  void set_momentum(std::optional<double> momentum);
  /// Frozen: evaluation's arithmetic in training mode too. Parameters keep their gradients.
  void set_frozen(bool on) { frozen_ = on; }
  bool is_frozen() const { return frozen_; }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }
  const Tensor& running_mean() const { return running_mean_; }
  const Tensor& running_var() const { return running_var_; }
  const Tensor& num_batches_tracked() const { return num_batches_tracked_; }

 protected:
  /// @param kind  a string literal: the class, as kind() says it and messages do
  /// @param least, most  the ranks of x that forward takes
  BatchNorm(const char* kind, int least, int most, std::int64_t num_features, const Options& options);
  /// The arguments of the functional op for this call. @throws Kind::argument for an x of another rank
  functional::BatchNormArguments arguments(const Tensor& x) const;

 private:
  const char* kind_;
  int least_, most_;
  std::int64_t features_;
  Options options_;
  bool frozen_ = false;
  Tensor weight_, bias_, running_mean_, running_var_, num_batches_tracked_;
};

/// BatchNorm of [N, C] or [N, C, L].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(std::int64_t num_features) : BatchNorm1d(num_features, Options{}) {}
  BatchNorm1d(std::int64_t num_features, const Options& options)
      : BatchNorm("BatchNorm1d", 2, 3, num_features, options) {}
};

/// BatchNorm of [N, C, H, W].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(std::int64_t num_features) : BatchNorm2d(num_features, Options{}) {}
  BatchNorm2d(std::int64_t num_features, const Options& options)
      : BatchNorm("BatchNorm2d", 4, 4, num_features, options) {}
};

/// BatchNorm of [N, C, D, H, W].
class BatchNorm3d : public BatchNorm {
 public:
  explicit BatchNorm3d(std::int64_t num_features) : BatchNorm3d(num_features, Options{}) {}
  BatchNorm3d(std::int64_t num_features, const Options& options)
      : BatchNorm("BatchNorm3d", 5, 5, num_features, options) {}
};

class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "ReLU"; }
};

class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
  std::string_view kind() const override { return "Identity"; }
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const functional::PoolOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "MaxPool2d"; }

 private:
  functional::PoolOptions options_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const functional::AvgPoolOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "AvgPool2d"; }

 private:
  functional::AvgPoolOptions options_;
};

class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(std::array<std::int64_t, 2> output) : output_(output) {}
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "AdaptiveAvgPool2d"; }

 private:
  std::array<std::int64_t, 2> output_;
};

/// Joins dimensions start..end (negative from the back) into one.
class Flatten : public Module {
 public:
  explicit Flatten(int start = 1, int end = -1) : start_(start), end_(end) {}
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Flatten"; }

 private:
  int start_, end_;
};

/// In training: zeroes elements with probability p and scales the rest by 1 / (1 - p). The generator is read at each
/// call and must outlive the layer.
class Dropout : public Module {
 public:
  /// @throws Kind::argument for p outside [0, 1]
  explicit Dropout(double p = 0.5, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Dropout"; }

 private:
  double p_;
  Generator* generator_;
};

/// The same for whole channels of x [N, C, ...].
class Dropout2d : public Module {
 public:
  /// @throws Kind::argument for p outside [0, 1]
  explicit Dropout2d(double p = 0.5, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Dropout2d"; }

 private:
  double p_;
  Generator* generator_;
};

/// Runs its children in order. Children are named "0", "1", ...
class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Modules>
  explicit Sequential(std::shared_ptr<Modules>... modules) {
    (push_back(std::move(modules)), ...);
  }
  void push_back(std::shared_ptr<Module> module);
  std::size_t size() const { return children().size(); }
  Tensor forward(const Tensor& x) override;
  std::string_view kind() const override { return "Sequential"; }
};

}  // namespace apex::nn
