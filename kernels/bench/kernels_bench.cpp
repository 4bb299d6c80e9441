// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <benchmark/benchmark.h>

#include <omp.h>

#include <cstring>
#include <string>
#include <vector>

#include "apex/core/simd.hpp"
#include "apex/core/tensor.hpp"
#include "apex/kernels/activation.hpp"
#include "apex/kernels/batch_norm.hpp"
#include "apex/kernels/conv.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/image.hpp"
#include "apex/kernels/indexing.hpp"
#include "apex/kernels/loss.hpp"
#include "apex/kernels/matmul.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/pool.hpp"
#include "apex/kernels/random.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/kernels/scan.hpp"
#include "apex/kernels/softmax.hpp"
#include "apex/kernels/sort.hpp"

// CPU loops at the sizes of a training step. bytes_per_second counts what an op must move at least: each operand once.

namespace {

using namespace apex;

constexpr auto kLast = MemoryFormat::channels_last;

Tensor filled(const Dims& sizes, MemoryFormat format = kLast, DType dtype = DType::f32) {
  const Tensor t = empty(sizes, is_16bit(dtype) ? DType::f32 : dtype, kCpu, format);
  kernels::uniform({}, t.view(), -1, 1, {.seed = 1});
  if (!is_16bit(dtype)) return t;
  const Tensor half = empty_like(t, dtype);
  kernels::copy({}, half.view(), t.view());
  return half;
}

void moved(benchmark::State& state, std::int64_t elements, int passes) {
  state.SetBytesProcessed(state.iterations() * elements * passes * 4);
}

/// Arguments: batch, channels, height = width, channels-last.
Dims activation(const benchmark::State& s) { return {s.range(0), s.range(1), s.range(2), s.range(2)}; }
MemoryFormat format_of(const benchmark::State& s) { return s.range(3) != 0 ? kLast : MemoryFormat::contiguous; }

void activations(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "c", "hw", "last"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int last : {1, 0})
    b->Args({128, 16, 28, last})
        ->Args({128, 32, 14, last})
        ->Args({128, 64, 7, last})
        ->Args({16, 64, 56, last})
        ->Args({16, 512, 7, last});
}

struct BatchNormData {
  explicit BatchNormData(const benchmark::State& s)
      : x(filled(activation(s), format_of(s))),
        y(filled(activation(s), format_of(s))),
        dy(filled(activation(s), format_of(s))),
        residual(filled(activation(s), format_of(s))),
        dx(empty_like(x)),
        dresidual(empty_like(x)),
        w(filled({s.range(1)})),
        b(filled({s.range(1)})),
        mean(filled({s.range(1)})),
        inv_std(filled({s.range(1)})),
        running_mean(filled({s.range(1)})),
        running_var(filled({s.range(1)})),
        dw(empty({s.range(1)})),
        db(empty({s.range(1)})) {}
  Tensor x, y, dy, residual, dx, dresidual, w, b, mean, inv_std, running_mean, running_var, dw, db;
};

void batch_norm_relu_forward(benchmark::State& state) {
  const BatchNormData d(state);
  for (auto _ : state)
    kernels::batch_norm_forward({}, d.y.view(), d.mean.view(), d.inv_std.view(), d.running_mean.view(),
                                d.running_var.view(), d.x.view(), d.w.view(), d.b.view(), {}, 0.1, {.relu = true});
  moved(state, d.x.numel(), 3);
}
BENCHMARK(batch_norm_relu_forward)->Apply(activations);

void batch_norm_add_relu_forward(benchmark::State& state) {
  const BatchNormData d(state);
  for (auto _ : state)
    kernels::batch_norm_forward({}, d.y.view(), d.mean.view(), d.inv_std.view(), d.running_mean.view(),
                                d.running_var.view(), d.x.view(), d.w.view(), d.b.view(), d.residual.view(), 0.1,
                                {.relu = true});
  moved(state, d.x.numel(), 4);
}
BENCHMARK(batch_norm_add_relu_forward)->Apply(activations);

void batch_norm_relu_backward(benchmark::State& state) {
  const BatchNormData d(state);
  for (auto _ : state)
    kernels::batch_norm_backward({}, d.dx.view(), {}, d.dw.view(), d.db.view(), d.dy.view(), {}, d.x.view(), d.w.view(),
                                 d.b.view(), d.mean.view(), d.inv_std.view(), {.relu = true});
  moved(state, d.x.numel(), 5);
}
BENCHMARK(batch_norm_relu_backward)->Apply(activations);

void batch_norm_add_relu_backward(benchmark::State& state) {
  const BatchNormData d(state);
  for (auto _ : state)
    kernels::batch_norm_backward({}, d.dx.view(), d.dresidual.view(), d.dw.view(), d.db.view(), d.dy.view(), d.y.view(),
                                 d.x.view(), d.w.view(), d.b.view(), d.mean.view(), d.inv_std.view(), {.relu = true});
  moved(state, d.x.numel(), 7);
}
BENCHMARK(batch_norm_add_relu_backward)->Apply(activations);

void relu(benchmark::State& state) {
  const Tensor x = filled(activation(state), format_of(state)), y = empty_like(x);
  for (auto _ : state) kernels::unary({}, y.view(), x.view(), kernels::UnaryOp::relu);
  moved(state, x.numel(), 2);
}
BENCHMARK(relu)->Apply(activations);

void add(benchmark::State& state) {
  const Tensor a = filled(activation(state), format_of(state)), b = filled(activation(state), format_of(state)),
               c = empty_like(a);
  for (auto _ : state) kernels::binary({}, c.view(), a.view(), b.view(), kernels::BinaryOp::add);
  moved(state, a.numel(), 3);
}
BENCHMARK(add)->Apply(activations);

void sum_over_channels_last(benchmark::State& state) {
  const Tensor x = filled(activation(state), format_of(state)), y = empty({state.range(1)});
  for (auto _ : state) kernels::reduce({}, y.view(), x.view(), {0, 2, 3}, kernels::ReduceOp::sum);
  moved(state, x.numel(), 1);
}
BENCHMARK(sum_over_channels_last)->Apply(activations);

void change_format(benchmark::State& state) {
  const Tensor x = filled(activation(state), format_of(state)),
               y = empty(x.sizes(), DType::f32, kCpu, state.range(3) != 0 ? MemoryFormat::contiguous : kLast);
  for (auto _ : state) kernels::copy({}, y.view(), x.view());
  moved(state, x.numel(), 2);
}
BENCHMARK(change_format)->Apply(activations);

void max_pool(benchmark::State& state) {
  const Tensor x = filled({16, 64, 112, 112}), y = empty({16, 64, 56, 56}, DType::f32, kCpu, kLast),
               indices = empty_like(y, DType::i32), dx = empty_like(x);
  const kernels::Pool2dOptions o{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  for (auto _ : state) {
    kernels::max_pool2d({}, y.view(), indices.view(), x.view(), o);
    if (state.range(0) != 0) kernels::max_pool2d_backward({}, dx.view(), y.view(), indices.view(), o);
  }
}
BENCHMARK(max_pool)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void softmax(benchmark::State& state) {
  const Tensor x = filled({state.range(0), state.range(1)}), y = empty_like(x);
  for (auto _ : state) kernels::softmax({}, y.view(), x.view(), 1);
  moved(state, x.numel(), 2);
}
BENCHMARK(softmax)->Args({128, 10})->Args({16, 1000})->Args({256, 30528})->Unit(benchmark::kMicrosecond)->UseRealTime();

/// Arguments: number of tensors, elements of each.
void sgd(benchmark::State& state) {
  std::vector<Tensor> tensors;
  std::vector<View> p, m;
  std::vector<ConstView> g;
  for (std::int64_t i = 0; i < state.range(0); ++i)
    for (int k = 0; k < 3; ++k) {
      tensors.push_back(filled({state.range(1)}));
      if (k == 2)
        g.emplace_back(tensors.back().view());
      else
        (k == 0 ? p : m).push_back(tensors.back().view());
    }
  const std::vector<std::uint8_t> first(p.size(), 0);
  for (auto _ : state)
    kernels::multi_tensor_sgd({}, {}, p, m, {}, g, first, {.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4});
  moved(state, state.range(0) * state.range(1), 5);
}
BENCHMARK(sgd)->Args({65, 4200})->Args({62, 188000})->Unit(benchmark::kMicrosecond)->UseRealTime();

/// Rows of a table by index, and the gradient of that. Arguments: rows looked up, features.
void table_rows(benchmark::State& state, bool gradient) {
  const std::int64_t count = state.range(0), features = state.range(1);
  const Tensor table = filled({4096, features}), rows = filled({count, features}), list = empty({count}, DType::i64);
  for (std::int64_t i = 0; i < count; ++i) list.data<std::int64_t>()[i] = i * 7919 % 4096;
  const Tensor index = views::expand(views::reshape(list, {count, 1}), {count, features});
  for (auto _ : state)
    if (gradient)
      kernels::scatter_add({}, table.view(), {}, rows.view(), index.view(), 0);
    else
      kernels::gather({}, rows.view(), table.view(), index.view(), 0);
  moved(state, (gradient ? count + 4096 : 2 * count) * features, 1);
}
BENCHMARK_CAPTURE(table_rows, gather, false)->Args({8192, 512})->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK_CAPTURE(table_rows, scatter_add, true)->Args({8192, 512})->Unit(benchmark::kMicrosecond)->UseRealTime();

/// Arguments: lines, their length.
void sort(benchmark::State& state) {
  const Tensor x = filled({state.range(0), state.range(1)}), y = empty_like(x), places = empty_like(x, DType::i64);
  for (auto _ : state) kernels::sort({}, y.view(), places.view(), x.view(), 1);
  state.SetItemsProcessed(state.iterations() * x.numel());
}
BENCHMARK(sort)->Args({1, 1 << 18})->Args({256, 1000})->Unit(benchmark::kMicrosecond)->UseRealTime();

void cumsum(benchmark::State& state) {
  const Tensor x = filled({1024, 4096}), y = empty_like(x);
  for (auto _ : state) kernels::cumsum({}, y.view(), x.view(), static_cast<int>(state.range(0)));
  moved(state, x.numel(), 2);
}
BENCHMARK(cumsum)->ArgName("dim")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void image_normalize(benchmark::State& state) {
  const Tensor x = empty({16, 3, 224, 224}, DType::u8, kCpu, kLast),
               y = empty({16, 3, 224, 224}, DType::f32, kCpu, kLast);
  kernels::fill({}, x.view(), 100);
  const std::vector<float> mean{123.675f, 116.28f, 103.53f}, std{58.395f, 57.12f, 57.375f};
  for (auto _ : state) kernels::image_normalize({}, y.view(), x.view(), mean, std);
}
BENCHMARK(image_normalize)->Unit(benchmark::kMicrosecond)->UseRealTime();

void image_resize(benchmark::State& state) {
  const Tensor x = empty({16, 3, 256, 256}, DType::u8, kCpu, kLast),
               y = empty({16, 3, 224, 224}, DType::u8, kCpu, kLast);
  kernels::fill({}, x.view(), 100);
  std::vector<kernels::ImageWindow> windows;
  for (std::int64_t i = 0; i < 16; ++i)
    windows.push_back({.image = views::select(x, 0, i).view(),
                       .row = i,
                       .box_left = static_cast<int>(i),
                       .box_top = 10,
                       .box_width = 200,
                       .box_height = 180,
                       .resized_width = 224,
                       .resized_height = 224,
                       .flip = i % 2 == 0});
  for (auto _ : state) kernels::image_resize({}, y.view(), windows);
}
BENCHMARK(image_resize)->Unit(benchmark::kMicrosecond)->UseRealTime();

void matmul_f64(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const Tensor a = filled({n, n}, kLast, DType::f64), b = filled({n, n}, kLast, DType::f64), c = empty_like(a);
  for (auto _ : state) kernels::matmul({}, c.view(), a.view(), b.view());
  state.counters["flop/s"] =
      benchmark::Counter(2.0 * static_cast<double>(n * n * n), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(matmul_f64)->Arg(256)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Many small products, as attention heads lie: [batch, length, heads, depth]. Argument: the length.
void matmul_heads(benchmark::State& state) {
  const std::int64_t length = state.range(0);
  const auto heads = [&] {
    return views::transpose(filled({2, length, 16, 64}, MemoryFormat::contiguous, DType::f32), 1, 2);
  };
  const Tensor q = heads(), k = views::transpose(heads(), 2, 3), scores = empty({2, 16, length, length});
  for (auto _ : state) kernels::matmul({}, scores.view(), q.view(), k.view());
  state.counters["flop/s"] = benchmark::Counter(2.0 * 2 * 16 * 64 * static_cast<double>(length * length),
                                                benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(matmul_heads)->Arg(32)->Arg(128)->Arg(512)->Unit(benchmark::kMicrosecond)->UseRealTime();

/// A layer of a DCGAN's generator, from 16 to 32 pixels. Arguments as those of conv3x3.
void conv_transpose4x4(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const Tensor x = filled({16, 128, 16, 16}, kLast, dtype), w = filled({128, 64, 4, 4}, kLast, dtype),
               y = filled({16, 64, 32, 32}, kLast, dtype), dw = empty_like(w);
  const kernels::ConvTranspose2dOptions o{.stride = {2, 2}, .padding = {1, 1}};
  for (auto _ : state) switch (state.range(1)) {
      case 0: kernels::conv_transpose2d_forward({}, y.view(), x.view(), w.view(), {}, o); break;
      case 1: kernels::conv_transpose2d_backward_data({}, x.view(), y.view(), w.view(), o); break;
      default: kernels::conv_transpose2d_backward_weight({}, dw.view(), {}, y.view(), x.view(), o);
    }
  state.counters["flop/s"] =
      benchmark::Counter(2.0 * 16 * 128 * 16 * 16 * 64 * 16, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(conv_transpose4x4)
    ->ArgNames({"dtype", "pass"})
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// Arguments: the dtype's number (0 f64, 1 f32, 2 f16, 3 bf16); forward, data gradient or weight gradient.
void conv3x3(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const Tensor x = filled({16, 64, 56, 56}, kLast, dtype), w = filled({64, 64, 3, 3}, kLast, dtype), y = empty_like(x),
               dw = empty_like(w);
  const kernels::Conv2dOptions o{.padding = {1, 1}};
  for (auto _ : state) switch (state.range(1)) {
      case 0: kernels::conv2d_forward({}, y.view(), x.view(), w.view(), {}, o); break;
      case 1: kernels::conv2d_backward_data({}, y.view(), x.view(), w.view(), o); break;
      default: kernels::conv2d_backward_weight({}, dw.view(), {}, y.view(), x.view(), o);
    }
  state.counters["flop/s"] =
      benchmark::Counter(2.0 * 16 * 64 * 56 * 56 * 64 * 9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(conv3x3)
    ->ArgNames({"dtype", "pass"})
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// --- arrays far larger than the caches, beside a copy of as many bytes by all threads ---

constexpr std::int64_t kLarge = std::int64_t{1} << 24;
const DType kLargeTypes[] = {DType::f32, DType::f16, DType::bf16};

Tensor large(DType dtype) { return filled({kLarge / 4096, 4096}, MemoryFormat::contiguous, dtype); }

/// Times `run`, which moves `arrays` arrays of kLarge elements; once before, so that all pages are there.
template <class F>
void large_run(benchmark::State& state, DType dtype, int arrays, F&& run) {
  run();
  for (auto _ : state) run();
  state.SetBytesProcessed(state.iterations() * kLarge * arrays * static_cast<std::int64_t>(size_of(dtype)));
}

void large_copy(benchmark::State& state, DType dtype) {
  const Tensor x = large(dtype), y = empty_like(x);
  const std::size_t bytes = x.bytes();
  large_run(state, dtype, 2, [&] {
#pragma omp parallel
    {
      const auto part = simd::split(static_cast<std::int64_t>(bytes), omp_get_thread_num(), omp_get_num_threads());
      std::memcpy(static_cast<char*>(y.raw_data()) + part.begin, static_cast<const char*>(x.raw_data()) + part.begin,
                  static_cast<std::size_t>(part.end - part.begin));
    }
  });
}

/// The same bytes by the library's own copy, which writes past the cache.
void large_copy_op(benchmark::State& state, DType dtype) {
  const Tensor x = large(dtype), y = empty_like(x);
  large_run(state, dtype, 2, [&] { kernels::copy({}, y.view(), x.view()); });
}

void large_unary(benchmark::State& state, DType dtype, kernels::UnaryOp op) {
  const Tensor x = large(dtype), y = empty_like(x);
  large_run(state, dtype, 2, [&] { kernels::unary({}, y.view(), x.view(), op); });
}

void large_activation(benchmark::State& state, DType dtype, kernels::Activation f) {
  const Tensor x = large(dtype), y = empty_like(x);
  large_run(state, dtype, 2, [&] { kernels::activation({}, y.view(), x.view(), f); });
}

void large_activation_backward(benchmark::State& state, DType dtype, kernels::Activation f) {
  const Tensor x = large(dtype), dy = large(dtype), dx = empty_like(x);
  large_run(state, dtype, 3, [&] { kernels::activation_backward({}, dx.view(), dy.view(), x.view(), f); });
}

void large_binary(benchmark::State& state, DType dtype, kernels::BinaryOp op) {
  const Tensor a = large(dtype), b = large(dtype), y = empty_like(a);
  large_run(state, dtype, 3, [&] { kernels::binary({}, y.view(), a.view(), b.view(), op); });
}

void large_reduce(benchmark::State& state, DType dtype, Dims dims, kernels::ReduceOp op) {
  const Tensor x = large(dtype);
  const Tensor y = empty(dims.empty() ? Dims{1, 1} : dims[0] == 0 ? Dims{1, 4096} : Dims{kLarge / 4096, 1}, dtype);
  large_run(state, dtype, 1, [&] { kernels::reduce({}, y.view(), x.view(), dims, op); });
}

void large_loss(benchmark::State& state, DType dtype, kernels::LossKind kind) {
  const Tensor x = large(dtype), t = large(dtype), loss = empty({});
  large_run(state, dtype, 2,
            [&] { kernels::pointwise_loss({}, loss.view(), x.view(), t.view(), {}, {}, {.kind = kind}); });
}

/// Registered in main: names are made of op and type.
void register_large() {
  using kernels::ActivationKind;
  using kernels::UnaryOp;
  const auto add_row = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond)->UseRealTime();
  };
  for (const DType t : kLargeTypes) {
    const std::string tail = std::string("/") + name_of(t);
    add_row("large_copy" + tail, [=](benchmark::State& s) { large_copy(s, t); });
    add_row("large_copy_op" + tail, [=](benchmark::State& s) { large_copy_op(s, t); });
    for (const auto op : {UnaryOp::neg, UnaryOp::sqrt, UnaryOp::relu, UnaryOp::exp, UnaryOp::log, UnaryOp::tanh,
                          UnaryOp::sigmoid, UnaryOp::erf})
      add_row(std::string("large_unary/") + name_of(op) + tail, [=](benchmark::State& s) { large_unary(s, t, op); });
    for (const kernels::Activation f : {kernels::Activation{ActivationKind::gelu},
                                        {ActivationKind::gelu_tanh},
                                        {ActivationKind::silu},
                                        {ActivationKind::leaky_relu, 0.2},
                                        {ActivationKind::elu, 1.0},
                                        {ActivationKind::softplus, 1.0, 20.0},
                                        {ActivationKind::clamp, -0.5, 0.5},
                                        {ActivationKind::log_sigmoid}}) {
      add_row(std::string("large_activation/") + name_of(f.kind) + tail,
              [=](benchmark::State& s) { large_activation(s, t, f); });
      add_row(std::string("large_activation_backward/") + name_of(f.kind) + tail,
              [=](benchmark::State& s) { large_activation_backward(s, t, f); });
    }
    for (const auto op :
         {kernels::BinaryOp::add, kernels::BinaryOp::mul, kernels::BinaryOp::div, kernels::BinaryOp::maximum})
      add_row(std::string("large_binary/") + name_of(op) + tail, [=](benchmark::State& s) { large_binary(s, t, op); });
    for (const auto& [name, dims] : {std::pair<const char*, Dims>{"all", {}}, {"rows", {1}}, {"columns", {0}}})
      for (const auto op : {kernels::ReduceOp::sum, kernels::ReduceOp::max})
        add_row(std::string("large_reduce/") + name_of(op) + '/' + name + tail,
                [=, d = dims](benchmark::State& s) { large_reduce(s, t, d, op); });
    for (const auto kind : {kernels::LossKind::mse, kernels::LossKind::bce_with_logits})
      add_row(std::string("large_loss/") + kernels::name_of(kind) + tail,
              [=](benchmark::State& s) { large_loss(s, t, kind); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_large();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
