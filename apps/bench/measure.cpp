// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>

#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/random.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace bench {

using apex::Tensor;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Stopwatch::Stopwatch(apex::Device device, int runs) : device_(device), runs_(runs) {
  std::int64_t bytes = std::int64_t{64} << 20;
#ifdef APEX_HAS_CUDA
  // At least 256 MiB: writing them gives the host time to queue the run that follows.
  if (device.is_cuda()) {
    apex::Context::current(device);
    bytes = std::max<std::int64_t>(std::int64_t{256} << 20, 2 * static_cast<std::int64_t>(apex::cuda::l2_bytes()));
  }
#endif
  buffer_ = apex::empty({bytes}, apex::DType::u8, device);
}

Stopwatch::~Stopwatch() = default;

double Stopwatch::time(const std::function<void()>& run) {
  for (int i = 0; i < 3; ++i) run();
  return device_.is_cuda() ? time_on_cuda(run) : time_on_cpu(run);
}

void Stopwatch::flush() {
#ifdef APEX_HAS_CUDA
  if (device_.is_cuda()) {
    const apex::Context ctx = apex::Context::current(device_);
    APEX_CHECK(cudaMemsetAsync(buffer_.raw_data(), 1, buffer_.bytes(), apex::cuda::stream_of(ctx)));
    return;
  }
#endif
  std::memset(buffer_.raw_data(), 1, buffer_.bytes());
}

double Stopwatch::time_on_cpu(const std::function<void()>& run) {
  std::vector<double> ms;
  for (int i = 0; i < runs_; ++i) {
    flush();
    const auto start = std::chrono::steady_clock::now();
    run();
    ms.push_back(1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median(std::move(ms));
}

double Stopwatch::time_on_cuda([[maybe_unused]] const std::function<void()>& run) {
  std::vector<double> ms;
#ifdef APEX_HAS_CUDA
  const apex::Context ctx = apex::Context::current(device_);
  std::vector<apex::cuda::Event> begin, end;
  for (int i = 0; i < runs_; ++i) {
    begin.emplace_back(true);
    end.emplace_back(true);
  }
  apex::cuda::synchronize(ctx);
  for (std::size_t i = 0; i < begin.size(); ++i) {
    flush();
    begin[i].record(ctx);
    run();
    end[i].record(ctx);
  }
  apex::cuda::synchronize(ctx);
  for (std::size_t i = 0; i < begin.size(); ++i) ms.push_back(begin[i].milliseconds_to(end[i]));
#endif
  return median(std::move(ms));
}

void synchronize([[maybe_unused]] apex::Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    apex::Context::current(device);
    APEX_CHECK(cudaDeviceSynchronize());
  }
#endif
}

int kernels_queued([[maybe_unused]] apex::Device device, [[maybe_unused]] const std::function<void()>& run) {
  int kernels = 0;
#ifdef APEX_HAS_CUDA
  if (!device.is_cuda()) return 0;
  const auto stream = apex::cuda::stream_of(apex::Context::current(device));
  cudaGraph_t graph = nullptr;
  APEX_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  run();
  APEX_CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t count = 0;
  APEX_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  APEX_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (const auto node : nodes) {
    cudaGraphNodeType type{};
    APEX_CHECK(cudaGraphNodeGetType(node, &type));
    kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  APEX_CHECK(cudaGraphDestroy(graph));
#endif
  return kernels;
}

std::string device_name(apex::Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    APEX_CHECK(cudaGetDeviceProperties(&properties, device.index));
    return properties.name;
  }
#endif
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return apex::to_string(device);
}

std::string device_versions([[maybe_unused]] apex::Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    int runtime = 0, driver = 0;
    APEX_CHECK(cudaRuntimeGetVersion(&runtime));
    APEX_CHECK(cudaDriverGetVersion(&driver));
    const auto text = [](int v) { return apex::concat(v / 1000, '.', v % 1000 / 10); };
    return apex::concat("CUDA ", text(runtime), ", driver for CUDA ", text(driver));
  }
#endif
  return {};
}

std::vector<double> values_of(const Tensor& t) {
  const apex::Context ctx = t.context();
  Tensor wide = apex::empty(t.sizes(), apex::DType::f64, t.device());
  apex::kernels::copy(ctx, wide.view(), apex::ConstView(t.view()));
  if (t.device().is_cuda()) {
    const Tensor host = apex::empty(t.sizes(), apex::DType::f64);
    apex::kernels::transfer(ctx, host.view(), apex::ConstView(wide.view()));
    synchronize(t.device());
    wide = host;
  }
  const double* data = wide.data<double>();
  return {data, data + wide.numel()};
}

Tensor uniform(const apex::Dims& sizes, apex::DType dtype, apex::Device device, std::uint64_t seed, double low,
               double high, apex::MemoryFormat format) {
  const Tensor t = apex::empty(sizes, dtype, device, format);
  apex::kernels::uniform(t.context(), t.view(), low, high, {.seed = seed});
  return t;
}

Tensor labels(std::int64_t count, std::int64_t classes, apex::Device device) {
  const Tensor host = apex::empty({count}, apex::DType::i64);
  for (std::int64_t i = 0; i < count; ++i) host.data<std::int64_t>()[i] = i * 7919 % classes;
  if (device.is_cpu()) return host;
  const Tensor t = apex::empty({count}, apex::DType::i64, device);
  apex::kernels::transfer(t.context(), t.view(), apex::ConstView(host.view()));
  synchronize(device);
  return t;
}

void Check::near(const char* what, std::int64_t at, double got, double want, double relative, double absolute) {
  ++compared_;
  const bool good = std::isfinite(got) && std::abs(got - want) <= relative * std::abs(want) + absolute;
  if (!good && problem_.empty())
    problem_ =
        apex::concat(what, '[', at, "] is ", got, ", wanted ", want, " within ", relative * std::abs(want) + absolute);
}

double rounding_of(apex::DType dtype) {
  switch (dtype) {
    case apex::DType::f16: return 0x1p-10;
    case apex::DType::bf16: return 0x1p-7;
    case apex::DType::f64: return 0x1p-50;
    default: return 0x1p-22;
  }
}

}  // namespace bench
