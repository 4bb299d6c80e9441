// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conv_graph.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>
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

#include <cudnn_frontend/backend/plan_helpers.h>

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
  const auto pass = static_cast<Pass>(key.pass);
  const fe::Tensor sum = make_tensor(key, pass == Pass::forward ? key.y : key.x, kSum, compute, true);
  const bool biased = key.bias != 0;
  std::vector<fe::Operation> operations;
  switch (pass) {
    case Pass::forward:
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                               .setxDesc(x)
                               .setwDesc(w)
                               .setyDesc(biased ? sum : y)
                               .setcDesc(conv)
                               .setAlpha(1.0)
                               .setBeta(0.0)
                               .build());
      break;
    case Pass::data:
      operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
                               .setdxDesc(biased ? sum : x)
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
  if (biased) {
    const fe::Tensor& result = pass == Pass::forward ? y : x;
    const std::int64_t channels[4] = {1, pass == Pass::forward ? key.y[1] : key.x[1], 1, 1};
    const fe::Tensor bias = make_tensor(key, channels, kBias, type);
    const auto add = fe::PointWiseDescBuilder_v8().setMode(CUDNN_POINTWISE_ADD).setComputeType(compute).build();
    operations.push_back(fe::OperationBuilder(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                             .setxDesc(sum)
                             .setbDesc(bias)
                             .setyDesc(result)
                             .setpwDesc(add)
                             .build());
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

/// "engine knobs type value type value ...": all that sets one configuration of a graph apart. Empty when cuDNN does
/// not say.
std::string describe(const fe::ManagedOpaqueDescriptor& config) {
  const auto engine = fe::make_shared_backend_pointer(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  std::vector<fe::ManagedOpaqueDescriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    knobs.push_back(fe::make_shared_backend_pointer(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    raw.push_back(knobs.back()->get_backend_descriptor());
  }
  const auto read = [](cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, std::int64_t room, std::int64_t* count, void* to) {
    return cudnnBackendGetAttribute(from, name, type, room, count, to) == CUDNN_STATUS_SUCCESS;
  };
  cudnnBackendDescriptor_t raw_engine = engine->get_backend_descriptor(), from = config->get_backend_descriptor();
  std::int64_t count = 0, id = 0, found = 0;
  if (!read(from, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw_engine) ||
      !read(raw_engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &id) ||
      !read(from, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, &found,
            raw.data()) ||
      found > CUDNN_KNOB_TYPE_COUNTS)
    return {};
  std::string text = concat(id, ' ', found);
  for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    std::int64_t value = 0;
    if (!read(raw[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type) ||
        !read(raw[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, &value))
      return {};
    text += concat(' ', static_cast<int>(type), ' ', value);
  }
  return text;
}

/// The configuration that was described; null when there is none such.
fe::ManagedOpaqueDescriptor configuration(const fe::OperationGraph_v8& graph, const std::string& description) {
  std::istringstream in(description);
  std::int64_t id = -1, count = 0;
  if (!(in >> id >> count)) return nullptr;
  std::unordered_map<fe::KnobType_t, std::int64_t> choices;
  for (std::int64_t i = 0; i < count; ++i) {
    int type = 0;
    std::int64_t value = 0;
    if (!(in >> type >> value)) return nullptr;
    choices[fe::convert_from_backend_knob_type(static_cast<cudnnBackendKnobType_t>(type))] = value;
  }
  fe::detail::backend_descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  std::vector<fe::detail::backend_descriptor> knobs;
  auto config = fe::make_shared_backend_pointer(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  if (fe::detail::create_engine(engine, id, graph.get_raw_desc()).is_bad() ||
      fe::detail::set_knob_choices(choices, knobs).is_bad() ||
      fe::detail::create_engine_config(config, engine, knobs).is_bad())
    return nullptr;
  return config;
}

}  // namespace

struct Plan::Impl {
  Impl(fe::ExecutionPlan&& made, std::string config) : plan(std::move(made)), description(std::move(config)) {}
  fe::ExecutionPlan plan;
  std::string description;
};

std::size_t Plan::workspace() const { return static_cast<std::size_t>(impl_->plan.getWorkspaceSize()); }

bool Plan::deterministic() const { return !has_note(impl_->plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC); }

// One line that describes the configuration, then cuDNN's own text, which is empty for most precompiled engines.
std::string Plan::serialized() const {
  std::string text = impl_->description + '\n';
  try {
    text += impl_->plan.getJsonRepresentation();
  } catch (const fe::cudnnException&) {}
  return text;
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

std::unique_ptr<const Plan> Plan::load(cudnnHandle_t handle, const ConvKey& key, const std::string& bytes) {
  const auto end = bytes.find('\n');
  if (end == std::string::npos) return nullptr;
  const std::string description = bytes.substr(0, end), text = bytes.substr(end + 1);
  if (!text.empty()) try {
      auto plan = fe::ExecutionPlanBuilder().setHandle(handle).loadFromJson(text);
      return std::make_unique<const Plan>(std::make_shared<Impl>(std::move(plan), description));
    } catch (const fe::cudnnException&) {  // the description may still do
    }
  try {
    const auto graph = make_graph(handle, key);
    const auto config = configuration(graph, description);
    if (config == nullptr) return nullptr;
    auto plan = fe::ExecutionPlanBuilder().setEngineConfig(config, graph.getTag()).build();
    return std::make_unique<const Plan>(std::make_shared<Impl>(std::move(plan), description));
  } catch (const fe::cudnnException&) {
    return nullptr;
  }
}

struct Suggestions::Impl {
  std::optional<fe::OperationGraph_v8> graph;  // the configurations refer to it
  fe::EngineConfigList configs;
  std::vector<std::string> descriptions;
  std::vector<bool> compiles;
};

Suggestions::Suggestions(cudnnHandle_t handle, const ConvKey& key, bool broad) : impl_(std::make_unique<Impl>()) {
  fe::EngineConfigList found, whole, rounding;
  try {
    impl_->graph.emplace(make_graph(handle, key));
  } catch (const fe::cudnnException&) {
    return;  // no such graph
  }
  const auto ask = [&](cudnnBackendHeurMode_t mode) {
    try {
      auto heuristics = fe::EngineHeuristicsBuilder_v8().setOperationGraph(*impl_->graph).setHeurMode(mode).build();
      auto& all = heuristics.getEngineConfig(heuristics.getEngineConfigCount());
      fe::filter(all, found, [&](cudnnBackendDescriptor_t config) { return forbidden(key, config); });
    } catch (const fe::cudnnException&) {  // this heuristic knows nothing of the graph
    }
  };
  ask(CUDNN_HEUR_MODE_A);
  if (broad) ask(CUDNN_HEUR_MODE_B);
  ask(CUDNN_HEUR_MODE_FALLBACK);
  rounding = std::move(found);
  fe::filter(rounding, whole, rounds_parts);
  std::set<std::string> seen;
  for (const auto& config : whole.empty() ? rounding : whole) {
    std::string description = describe(config);
    if (!description.empty() && !seen.insert(description).second) continue;
    impl_->configs.push_back(config);
    impl_->descriptions.push_back(std::move(description));
    impl_->compiles.push_back(
        fe::hasBehaviorNote<CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION>(config->get_backend_descriptor()));
  }
}

Suggestions::~Suggestions() = default;

std::size_t Suggestions::size() const { return impl_->configs.size(); }

bool Suggestions::compiles(std::size_t i) const { return impl_->compiles[i]; }

std::unique_ptr<const Plan> Suggestions::build(std::size_t i) const {
  try {
    auto plan = fe::ExecutionPlanBuilder().setEngineConfig(impl_->configs[i], impl_->graph->getTag()).build();
    return std::make_unique<const Plan>(std::make_shared<Plan::Impl>(std::move(plan), impl_->descriptions[i]));
  } catch (const fe::cudnnException&) {
    return nullptr;
  }
}

}  // namespace apex::kernels::cuda::cudnn
