// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conv_graph.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

// The descriptor half of cudnn-frontend. Its graph half would bring in attention kernels that need libcuda and NVRTC at
// link time, and compiles for a minute.
#include <cudnn_frontend_ConvDesc.h>
#include <cudnn_frontend_EngineConfig.h>
#include <cudnn_frontend_ExecutionPlan.h>
#include <cudnn_frontend_Filters.h>
#include <cudnn_frontend_Heuristics.h>
#include <cudnn_frontend_Operation.h>
#include <cudnn_frontend_OperationGraph.h>
#include <cudnn_frontend_PointWiseDesc.h>
#include <cudnn_frontend_Tensor.h>
#include <cudnn_frontend_VariantPack.h>

#include "../handles.hpp"

namespace fe = cudnn_frontend;

namespace apex::kernels::cuda::cudnn {
namespace {

enum Uid : std::int64_t { kX = 1, kW, kY, kBias, kSum };

cudnnDataType_t data_type(const ConvKey& key) {
  switch (static_cast<DType>(key.dtype)) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

fe::Tensor make_tensor(const ConvKey& key, const std::int64_t (&sizes)[4], std::int64_t uid, cudnnDataType_t type,
                       bool internal = false) {
  std::array<std::int64_t, 4> strides{};
  if (key.channels_last != 0)
    strides = {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
  else
    strides = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  return fe::TensorBuilder()
      .setDim(4, sizes)
      .setStride(4, strides.data())
      .setId(uid)
      .setAlignment(16)
      .setDataType(type)
      .setVirtual(internal)
      .build();
}

fe::OperationGraph_v8 make_graph(cudnnHandle_t handle, const ConvKey& key) {
  const auto type = data_type(key);
  const auto compute = type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const fe::Tensor x = make_tensor(key, key.x, kX, type), w = make_tensor(key, key.w, kW, type),
                   y = make_tensor(key, key.y, kY, type);
  const auto conv = fe::ConvDescBuilder_v8()
                        .setComputeType(compute)
                        .setMathMode(CUDNN_CROSS_CORRELATION)
                        .setSpatialDimCount(2)
                        .setSpatialStride(2, key.stride)
                        .setPrePadding(2, key.padding)
                        .setPostPadding(2, key.padding)
                        .setDilation(2, key.dilation)
                        .build();
  std::vector<fe::Operation> operations;
  switch (static_cast<Pass>(key.pass)) {
    case Pass::forward: {
      if (key.bias == 0) {
        operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                                 .setxDesc(x)
                                 .setwDesc(w)
                                 .setyDesc(y)
                                 .setcDesc(conv)
                                 .setAlpha(1.0)
                                 .setBeta(0.0)
                                 .build());
        break;
      }
      const std::int64_t channels[4] = {1, key.y[1], 1, 1};
      const fe::Tensor sum = make_tensor(key, key.y, kSum, compute, true),
                       bias = make_tensor(key, channels, kBias, type);
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                               .setxDesc(x)
                               .setwDesc(w)
                               .setyDesc(sum)
                               .setcDesc(conv)
                               .setAlpha(1.0)
                               .setBeta(0.0)
                               .build());
      const auto add = fe::PointWiseDescBuilder_v8().setMode(CUDNN_POINTWISE_ADD).setComputeType(compute).build();
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                               .setxDesc(sum)
                               .setbDesc(bias)
                               .setyDesc(y)
                               .setpwDesc(add)
                               .build());
      break;
    }
    case Pass::data:
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
                               .setdxDesc(x)
                               .setwDesc(w)
                               .setdyDesc(y)
                               .setcDesc(conv)
                               .setAlpha(1.0)
                               .setBeta(0.0)
                               .build());
      break;
    case Pass::weight:
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
                               .setxDesc(x)
                               .setdwDesc(w)
                               .setdyDesc(y)
                               .setcDesc(conv)
                               .setAlpha(1.0)
                               .setBeta(0.0)
                               .build());
      break;
  }
  return fe::OperationGraphBuilder_v8().setHandle(handle).setOperationGraph(operations).build();
}

/// Engines that would break a promise: no TF32 unless allowed, no transforms that lose digits, the same bits where
/// asked for.
bool forbidden(const ConvKey& key, cudnnBackendDescriptor_t config) {
  const auto dtype = static_cast<DType>(key.dtype);
  if (key.deterministic != 0 && fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC>(config)) return true;
  if (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_FFT>(config)) return true;
  if (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6>(config)) return true;
  if (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13>(config)) return true;
  if (is_16bit(dtype)) return fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD>(config);
  if (key.tf32 != 0) return false;
  return fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS>(config) ||
         (dtype == DType::f32 && fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_TENSOR_CORE>(config));
}

/// Engines that round parts of a sum: taken only where there is no other.
bool rounds_parts(cudnnBackendDescriptor_t config) {
  return fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION>(config);
}

bool has_note(const fe::ExecutionPlan& plan, cudnnBackendNumericalNote_t note) {
  const auto& notes = plan.getAllNumericNotes();
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

}  // namespace

struct Plan::Impl {
  explicit Impl(fe::ExecutionPlan&& made) : plan(std::move(made)) {}
  fe::ExecutionPlan plan;
};

std::size_t Plan::workspace() const { return static_cast<std::size_t>(impl_->plan.getWorkspaceSize()); }

bool Plan::deterministic() const { return !has_note(impl_->plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC); }

const std::string& Plan::name() const { return impl_->plan.getTag(); }

std::string Plan::serialized() const {
  try {
    return impl_->plan.getJsonRepresentation();
  } catch (const fe::cudnnException&) {
    return {};
  }
}

void Plan::run(cudnnHandle_t handle, const Buffers& buffers, void* workspace) const {
  std::array<void*, 4> data{const_cast<void*>(buffers.x), const_cast<void*>(buffers.w), const_cast<void*>(buffers.y),
                            const_cast<void*>(buffers.bias)};
  const std::array<std::int64_t, 4> uids{kX, kW, kY, kBias};
  const std::int64_t count = buffers.bias == nullptr ? 3 : 4;
  try {
    const auto pack = fe::VariantPackBuilder_v8()
                          .setWorkspacePointer(workspace)
                          .setDataPointers(count, data.data())
                          .setUids(count, uids.data())
                          .build();
    check(cudnnBackendExecute(handle, impl_->plan.get_raw_desc(), pack.get_raw_desc()), "cudnnBackendExecute");
  } catch (fe::cudnnException& e) {
    check(e.getCudnnStatus(), "cudnnBackendExecute");
    fail(Kind::state, concat("conv2d: ", e.what()));
  }
}

std::unique_ptr<const Plan> Plan::load(cudnnHandle_t handle, const std::string& text) {
  try {
    auto plan = fe::ExecutionPlanBuilder().setHandle(handle).loadFromJson(text);
    return std::make_unique<const Plan>(std::make_shared<Impl>(std::move(plan)));
  } catch (const fe::cudnnException&) {
    return nullptr;
  }
}

struct Suggestions::Impl {
  std::string tag;
  fe::EngineConfigList configs;
  std::vector<bool> compiles;
};

Suggestions::Suggestions(cudnnHandle_t handle, const ConvKey& key, bool broad) : impl_(std::make_unique<Impl>()) {
  try {
    auto graph = make_graph(handle, key);
    impl_->tag = graph.getTag();
    fe::EngineConfigList all;
    const auto ask = [&](cudnnBackendHeurMode_t mode) {
      try {
        auto heuristics = fe::EngineHeuristicsBuilder_v8().setOperationGraph(graph).setHeurMode(mode).build();
        auto& found = heuristics.getEngineConfig(heuristics.getEngineConfigCount());
        fe::filter(found, all, [&](cudnnBackendDescriptor_t config) { return forbidden(key, config); });
      } catch (const fe::cudnnException&) {  // this heuristic knows nothing of the graph
      }
    };
    ask(CUDNN_HEUR_MODE_A);
    if (broad) ask(CUDNN_HEUR_MODE_B);
    if (all.empty()) ask(CUDNN_HEUR_MODE_FALLBACK);
    fe::filter(all, impl_->configs, rounds_parts);
    if (impl_->configs.empty()) impl_->configs = std::move(all);
  } catch (const fe::cudnnException&) {  // no such graph
  }
  for (const auto& config : impl_->configs)
    impl_->compiles.push_back(
        fe::hasBehaviorNote<CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION>(config->get_backend_descriptor()));
}

Suggestions::~Suggestions() = default;

std::size_t Suggestions::size() const { return impl_->configs.size(); }

bool Suggestions::compiles(std::size_t i) const { return impl_->compiles[i]; }

std::unique_ptr<const Plan> Suggestions::build(std::size_t i) const {
  try {
    auto plan = fe::ExecutionPlanBuilder().setEngineConfig(impl_->configs[i], impl_->tag).build();
    return std::make_unique<const Plan>(std::make_shared<Plan::Impl>(std::move(plan)));
  } catch (const fe::cudnnException&) {
    return nullptr;
  }
}

}  // namespace apex::kernels::cuda::cudnn
