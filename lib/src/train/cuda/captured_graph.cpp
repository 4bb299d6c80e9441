// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "captured_graph.hpp"

#include <cuda.h>  // types only: driver functions are looked up, since a host without a GPU has no libcuda

#include <unordered_map>

namespace apex::train {
namespace {

template <class Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const auto status = cudaGetDriverEntryPointByVersion(name, &found, 12040, cudaEnableDefault, &result);
#else
  const auto status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

/// The runtime only knows kernels of its own; those of libraries that use the driver have a name there.
std::string kernel_name(cudaGraphNode_t node) {
  using GetParams = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  using FunctionName = CUresult (*)(const char**, CUfunction);
  using KernelName = CUresult (*)(const char**, CUkernel);
  static const auto get_params = driver_function<GetParams>("cuGraphKernelNodeGetParams");
  static const auto function_name = driver_function<FunctionName>("cuFuncGetName");
  static const auto name_of_kernel = driver_function<KernelName>("cuKernelGetName");
  CUDA_KERNEL_NODE_PARAMS params{};
  const char* name = nullptr;
  if (get_params == nullptr || get_params(node, &params) != CUDA_SUCCESS) return "?";
  if (params.func != nullptr && function_name != nullptr && function_name(&name, params.func) == CUDA_SUCCESS)
    return name;
  if (params.kern != nullptr && name_of_kernel != nullptr && name_of_kernel(&name, params.kern) == CUDA_SUCCESS)
    return name;
  return "?";
}

StepGraph::Node::Type type_of(cudaGraphNode_t node) {
  using Type = StepGraph::Node::Type;
  cudaGraphNodeType type{};
  APEX_CHECK(cudaGraphNodeGetType(node, &type));
  switch (type) {
    case cudaGraphNodeTypeKernel: return Type::kernel;
    case cudaGraphNodeTypeMemcpy: return Type::copy;
    case cudaGraphNodeTypeMemset: return Type::fill;
    case cudaGraphNodeTypeMemAlloc: return Type::allocation;
    case cudaGraphNodeTypeMemFree: return Type::release;
    default: return Type::other;
  }
}

cudaError_t edges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, std::size_t* count) {
#if CUDART_VERSION >= 13000
  // Edges of programmatic launches carry data, and asking without room for it is then an error.
  std::vector<cudaGraphEdgeData> data(from == nullptr ? 0 : *count);
  return cudaGraphGetEdges(graph, from, to, from == nullptr ? nullptr : data.data(), count);
#else
  return cudaGraphGetEdges(graph, from, to, count);
#endif
}

}  // namespace

CapturedGraph::Attempt CapturedGraph::capture(const Context& ctx, const std::function<void()>& body) {
  const cudaStream_t stream = apex::cuda::stream_of(ctx);
  Attempt out;
  // Thread-local: the watchdog and loader threads may go on calling the runtime.
  APEX_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    body();
  } catch (const std::exception& error) {
    out.problem = error.what();
  }
  cudaGraph_t graph = nullptr;
  const auto ended = cudaStreamEndCapture(stream, &graph);
  if (!out.problem.empty() || ended != cudaSuccess || graph == nullptr) {
    if (out.problem.empty()) out.problem = concat("capture ended with: ", cudaGetErrorString(ended));
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    return out;
  }
  std::unique_ptr<CapturedGraph> made(new CapturedGraph(graph));
  const auto status = cudaGraphInstantiate(&made->exec_, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  if (status != cudaSuccess) {
    made->exec_ = nullptr;
    cudaGetLastError();
    out.problem = concat("the graph cannot be instantiated: ", cudaGetErrorString(status));
    return out;
  }
  out.graph = std::move(made);
  return out;
}

CapturedGraph::~CapturedGraph() {
  // A launch in flight keeps what it needs; at the end of a process the driver may be gone.
  if (exec_ != nullptr && cudaGraphExecDestroy(exec_) != cudaSuccess) cudaGetLastError();
  if (graph_ != nullptr && cudaGraphDestroy(graph_) != cudaSuccess) cudaGetLastError();
}

void CapturedGraph::launch(const Context& ctx) {
  auto status = cudaGraphLaunch(exec_, apex::cuda::stream_of(ctx));
  if (status == cudaErrorMemoryAllocation) {  // what eager steps left in the pool may be what the graph lacks
    cudaGetLastError();
    apex::cuda::trim(ctx.device);
    status = cudaGraphLaunch(exec_, apex::cuda::stream_of(ctx));
  }
  APEX_CHECK(status);
}

std::vector<StepGraph::Node> CapturedGraph::nodes() const {
  std::size_t count = 0, links = 0;
  APEX_CHECK(cudaGraphGetNodes(graph_, nullptr, &count));
  std::vector<cudaGraphNode_t> handles(count);
  if (count > 0) APEX_CHECK(cudaGraphGetNodes(graph_, handles.data(), &count));
  std::vector<StepGraph::Node> out(count);
  std::unordered_map<cudaGraphNode_t, std::size_t> number;
  for (std::size_t i = 0; i < count; ++i) {
    number[handles[i]] = i;
    out[i].type = type_of(handles[i]);
    if (out[i].type == StepGraph::Node::Type::kernel) out[i].name = kernel_name(handles[i]);
  }
  APEX_CHECK(edges(graph_, nullptr, nullptr, &links));
  std::vector<cudaGraphNode_t> from(links), to(links);
  if (links > 0) APEX_CHECK(edges(graph_, from.data(), to.data(), &links));
  for (std::size_t e = 0; e < links; ++e) out[number.at(to[e])].after.push_back(number.at(from[e]));
  return out;
}

void CapturedGraph::write_dot(const std::string& path) const {
  APEX_CHECK(cudaGraphDebugDotPrint(graph_, path.c_str(), cudaGraphDebugDotFlagsVerbose));
}

}  // namespace apex::train
