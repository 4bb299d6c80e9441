// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "apex/core/tensor.hpp"
#include "apex/kernels/conv.hpp"
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/pool.hpp"
#include "apex/random.hpp"

/// Differentiable ops. Each opens an OpScope (apex/autograd/ops.hpp), computes, and records its backward. Outputs keep
/// the memory format of their (first) input. Tensors of one call lie on one device and have one dtype, except that ops
/// of amp class promote bring floating ones to the widest; what an op takes is its row in the op table. Integers wrap;
/// gradients are for floating types alone. Common errors: Kind::argument for sizes, dtypes or devices that do not fit,
/// Kind::unsupported for a dtype the op does not do.
namespace apex::nn::functional {

// --- arithmetic, with broadcasting (sizes from the right; 1 stretches) ---

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);  ///< gradient to the smaller, to `a` where equal
Tensor maximum(const Tensor& a, const Tensor& b);  ///< gradient to the larger, to `a` where equal
/// x * factor + shift
Tensor scale(const Tensor& x, double factor, double shift = 0.0);
/// condition ? a : b; condition boolean.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// boolean, without a gradient; a comparison with NaN is false, except ne
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);

Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);  ///< derivative 0 at 0
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor tanh(const Tensor& x);     ///< derivative 1 - y^2 of the rounded result y, which in 16 bits has few digits
Tensor sigmoid(const Tensor& x);  ///< derivative y (1 - y), likewise
Tensor relu(const Tensor& x);     ///< derivative 0 at 0; NaN stays NaN
Tensor erf(const Tensor& x);

// --- activations; formulas, corners and limits: kernels::Activation ---

enum class GeluForm { exact, tanh };
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::exact);
Tensor silu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1.0);
Tensor softplus(const Tensor& x, double beta = 1.0, double threshold = 20.0);
/// x within [low, high]; either may be infinite. The derivative at the ends is 1.
Tensor clamp(const Tensor& x, double low, double high);
/// The same with derivative 0 at the ends.
Tensor hardtanh(const Tensor& x, double low = -1.0, double high = 1.0);
Tensor log_sigmoid(const Tensor& x);

// --- reductions over `dims` (empty: all; negative from the end) ---

Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  ///< i64 for integers and booleans
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// NaN where any element is (no gradient then); elements equal to the result share its gradient evenly.
/// @throws Kind::argument over nothing
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// boolean: whether any element, or all of them, are not 0 (NaN is not 0). Over nothing: false, true.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// i64: the place along `dim`, the first among equals; NaN comes before every number. @throws Kind::argument over
/// nothing
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim, bool keepdim = false);
/// Running sum along `dim`; i64 for integers and booleans.
Tensor cumsum(const Tensor& x, int dim);

// --- shape; views where strides allow ---

Tensor reshape(const Tensor& x, const Dims& sizes);  ///< one size may be -1; copies only when strides force it
Tensor flatten(const Tensor& x, int start = 0, int end = -1);
Tensor permute(const Tensor& x, const Dims& order);
Tensor transpose(const Tensor& x, int a, int b);
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length);
/// Elements start, start + step, ... below stop of dimension `dim`, a view. Negative start and stop count from the end;
/// both are brought into range, as Python does. @throws Kind::argument for step < 1
Tensor slice(const Tensor& x, int dim, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
Tensor flip(const Tensor& x, const Dims& dims);             ///< a copy, reversed along these
Tensor roll(const Tensor& x, std::int64_t shift, int dim);  ///< element i goes to (i + shift) mod size
Tensor expand(const Tensor& x, const Dims& sizes);

/// One after another along `dim`; other sizes must agree, those along `dim` may be 0.
/// @throws Kind::argument for an empty list or sizes that differ
Tensor cat(std::span<const Tensor> tensors, int dim = 0);
Tensor cat(std::initializer_list<Tensor> tensors, int dim = 0);
/// The same along a new dimension `dim` of the result. Sizes must agree.
Tensor stack(std::span<const Tensor> tensors, int dim = 0);
Tensor stack(std::initializer_list<Tensor> tensors, int dim = 0);

struct Padding {
  std::int64_t before = 0, after = 0;  ///< elements put in front and behind; negative ones are cut off
};
/// Puts `value` around x; one Padding for each dimension, the first dimension first. What is negative is cut off first.
/// @throws Kind::argument for another count of amounts or when more is cut off than there is
Tensor pad(const Tensor& x, std::span<const Padding> amounts, double value = 0.0);
Tensor pad(const Tensor& x, std::initializer_list<Padding> amounts, double value = 0.0);

Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
Tensor cast(const Tensor& x, DType dtype);  ///< the gradient is cast back
/// x itself when it lies there. To the host: the result is ready on return. To a device: queued on its current stream.
Tensor to(const Tensor& x, Device device);

// --- places and order; indices are i64 or i32, counted from 0. A wrong one is Kind::argument on the CPU; for CUDA see
//     apex/kernels/indexing.hpp. Gradients of repeated indices are summed in a fixed order ---

/// y[..., i, ...] = x[..., index[..., i, ...], ...] along `dim`; index has x's rank and, elsewhere, at most its sizes.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// x with y[..., index[..., i, ...], ...] += src[..., i, ...] along `dim`; src has index's sizes.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src);
/// Entries index[0], index[1], ... of dimension `dim`; index of rank 1.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// Rows of weight [entries, features]: [indices..., features]. Rows looked up as `padding_idx` (negative from the end)
/// get no gradient.
Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<std::int64_t> padding_idx = {});
/// [labels..., classes]: 1 at each label, else 0. No gradient.
Tensor one_hot(const Tensor& labels, std::int64_t classes, DType dtype = DType::i64);

struct Ordered {
  Tensor values;
  Tensor indices;  ///< i64: where along `dim` each value was
};
/// Stable; smallest first, or largest first. NaN counts as larger than every number.
Ordered sort(const Tensor& x, int dim = -1, bool descending = false);
/// The k largest, largest first, or the k smallest, smallest first. @throws Kind::argument for k outside [0, size]
Ordered topk(const Tensor& x, std::int64_t k, int dim = -1, bool largest = true);

// --- layers ---

/// a [..., m, k] times b [..., k, n] -> [..., m, n]; the leading dimensions broadcast. Of rank 1, a is a row and b a
/// column whose dimension the result does not have. Transposed and expanded views are taken as they lie.
Tensor matmul(const Tensor& a, const Tensor& b);
/// matmul of [batch, m, k] and [batch, k, n] and nothing else.
Tensor bmm(const Tensor& a, const Tensor& b);
/// beta * input + alpha * matmul(a, b), rounded once; a and b of rank 2 or more, input broadcasts to the product and is
/// not read when beta is 0.
Tensor baddbmm(const Tensor& input, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);
/// x [..., in] weight^T [in, out] + bias [out]; bias may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

using Conv2dOptions = kernels::Conv2dOptions;
/// x [N, C, H, W], weight [K, C / groups, R, S], bias [K] or undefined -> [N, K, H', W']; see kernels::conv2d_forward.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});
using ConvTranspose2dOptions = kernels::ConvTranspose2dOptions;
/// x [N, C, H, W], weight [C, K / groups, R, S], bias [K] or undefined -> [N, K, H', W']; see
/// kernels::conv_transpose2d_forward.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});

/// The gradient of sum(dy * conv2d(x, weight)) with respect to a weight of these sizes, as an op of its own: what the
/// backward of a convolution is made of where it is to be differentiated again.
Tensor conv2d_weight(const Tensor& x, const Dims& sizes, const Tensor& dy, const Conv2dOptions& options = {});

/// As the pairs of Conv2dOptions and ConvTranspose2dOptions, in one dimension.
struct Conv1dOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};
struct ConvTranspose1dOptions {
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
};
/// x [N, C, L], weight [K, C / groups, R], bias [K] or undefined -> [N, K, L']: conv2d on images of one row.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv1dOptions& options = {});
/// x [N, C, L], weight [C, K / groups, R], bias [K] or undefined -> [N, K, L'].
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose1dOptions& options = {});

/// What batch norm works with beside x. All tensors are [C] and may be undefined where said. Parameters and statistics
/// have x's dtype or the one sums are formed in (f32 for 16-bit x); gradients have that of what they belong to.
struct BatchNormArguments {
  Tensor weight = {}, bias = {};  ///< undefined: 1 and 0
  Tensor running_mean = {},
         running_var = {};          ///< undefined: not tracked (training only); updated in place when training
  Tensor num_batches_tracked = {};  ///< i64, one element: training raises it by one unless x is empty; may be undefined
  bool training = true;             ///< statistics of the batch; else the running ones
  /// Undefined: running statistics are the plain average of all batches num_batches_tracked counts, this one included.
  std::optional<double> momentum = 0.1;
  double eps = 1e-5;
};
/// y = (x - mean) / sqrt(var + eps) * weight + bias over dimension 1 of rank 2 to 5; see kernels::batch_norm_forward.
/// @throws Kind::argument in training when a channel has only one value
Tensor batch_norm(const Tensor& x, const BatchNormArguments& arguments);
/// relu(batch_norm(x)), one pass.
Tensor batch_norm_relu(const Tensor& x, const BatchNormArguments& arguments);
/// relu(batch_norm(x) + residual), one pass. `residual` is brought to x's strides when it has others.
Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const BatchNormArguments& arguments);

/// Max pooling. Windows of the kernel's size every stride; padding counts as -infinity.
struct PoolOptions {
  std::array<std::int64_t, 2> kernel{2, 2};
  std::array<std::int64_t, 2> stride{2, 2};
  std::array<std::int64_t, 2> padding{0, 0};
  bool ceil_mode = false;
};
Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
using AvgPoolOptions = kernels::Pool2dOptions;
Tensor avg_pool2d(const Tensor& x, const AvgPoolOptions& options);
Tensor adaptive_avg_pool2d(const Tensor& x, std::array<std::int64_t, 2> output);

/// Derivatives are formed of the rounded result; see kernels/softmax.hpp.
Tensor softmax(const Tensor& x, int dim);
Tensor log_softmax(const Tensor& x, int dim);

using CrossEntropyOptions = kernels::CrossEntropyOptions;
/// logits [N, C], labels [N] i64 -> a scalar (mean or sum) or [N]; f64 for f64 logits, else f32. See
/// kernels::cross_entropy for the formula, smoothing and ignored rows.
/// @throws Kind::argument for a label out of range, naming row and value
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options = {});

// --- losses: a scalar (mean or sum) or one for each element; f64 for f64, else f32. kernels/loss.hpp has formulas and
// special points. Gradients flow to x and to the target, not to weights (Kind::unsupported when one wants one). ---

using Reduction = kernels::Reduction;

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta = 1.0, Reduction reduction = Reduction::mean);
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1.0, Reduction reduction = Reduction::mean);

struct BceOptions {
  Tensor weight = {};  ///< broadcasts to x; undefined: 1
  Reduction reduction = Reduction::mean;
};
/// x are probabilities in [0, 1]; prefer the form with logits, which loses no digits.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BceOptions& options = {});

struct BceWithLogitsOptions {
  Tensor weight = {};
  Tensor pos_weight = {};  ///< of the positives; broadcasts to x, as [classes] does
  Reduction reduction = Reduction::mean;
};
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BceWithLogitsOptions& options = {});

struct NllLossOptions {
  Tensor weight = {};  ///< [C], x's dtype; undefined: 1
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;  ///< mean divides by the weights of the labels that count
};
/// x [N, C, ...], logarithms of probabilities (log_softmax over dimension 1); labels [N, ...] i64.
/// @throws Kind::argument for a label out of range (CPU; see kernels::nll_loss for CUDA)
Tensor nll_loss(const Tensor& x, const Tensor& labels, const NllLossOptions& options = {});

struct KlDivOptions {
  bool log_target = false;
  Reduction reduction = Reduction::mean;  ///< over all elements; for the divergence of a batch: sum, divided by N
};
/// x are logarithms of probabilities.
Tensor kl_div(const Tensor& x, const Tensor& target, const KlDivOptions& options = {});

/// Training: keeps each element with probability 1 - p, scaled by 1 / (1 - p), by global sample row (SampleRowsGuard).
/// p == 1 gives zeros. Not training or p == 0: returns x and draws nothing. @throws Kind::argument for p outside [0, 1]
Tensor dropout(const Tensor& x, double p, bool training, Generator& generator = default_generator());
/// The same for whole channels of x [N, C, ...].
Tensor dropout2d(const Tensor& x, double p, bool training, Generator& generator = default_generator());

}  // namespace apex::nn::functional

namespace apex::nn {
using functional::cross_entropy;
using functional::relu;
}  // namespace apex::nn

namespace apex {
using nn::functional::add;
using nn::functional::cast;
using nn::functional::contiguous;
using nn::functional::div;
using nn::functional::matmul;
using nn::functional::mean;
using nn::functional::mul;
using nn::functional::permute;
using nn::functional::reshape;
using nn::functional::scale;
using nn::functional::sub;
using nn::functional::sum;
using nn::functional::transpose;
}  // namespace apex
