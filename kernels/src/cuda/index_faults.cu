// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/data_checks.hpp"
#include "index_access.cuh"

namespace apex::kernels::cuda {
namespace {

struct Fault {
  unsigned long long flat;  ///< smallest row-major position of a wrong element; ~0: none
  std::int64_t value;
};

struct Bounds {
  std::int64_t below, ignore;
  bool ignores;
  __device__ bool fits(std::int64_t i) const { return (i >= 0 && i < below) || (ignores && i == ignore); }
};

__global__ void __launch_bounds__(kMapThreads)
    find_kernel(Fault* fault, const Indices index, const Index<1> space, const Bounds bounds) {
  const std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (p < space.numel && !bounds.fits(index.at(space.at(p).v[0])))
    atomicMin(&fault->flat, static_cast<unsigned long long>(p));
}

__global__ void value_kernel(Fault* fault, const Indices index, const Index<1> space) {
  if (fault->flat != ~0ull) fault->value = index.at(space.at(static_cast<std::int64_t>(fault->flat)).v[0]);
}

}  // namespace

void check_indices(const Context& ctx, const IndexBounds& bounds, const ConstView& index) {
  if (!data_checks() || index.numel() == 0 || apex::cuda::capturing(ctx)) return;
  const ConstView once = distinct(index);
  const auto space = make_index<1>(once.sizes, {once.strides}, Order::logical);
  const Bounds b{bounds.below, bounds.ignore.value_or(0), bounds.ignore.has_value()};
  const Workspace memory = ctx.workspace(sizeof(Fault));
  const auto stream = stream_of(ctx);
  APEX_CHECK(cudaMemsetAsync(memory.data(), 0xff, sizeof(Fault), stream));
  const auto blocks = static_cast<unsigned>(ceil_div(space.numel, kMapThreads));
  find_kernel<<<blocks, kMapThreads, 0, stream>>>(memory.as<Fault>(), Indices(once), space, b);
  value_kernel<<<1, 1, 0, stream>>>(memory.as<Fault>(), Indices(once), space);
  check_launch(bounds.op);
  Fault fault{};
  APEX_CHECK(cudaMemcpyAsync(&fault, memory.data(), sizeof(fault), cudaMemcpyDeviceToHost, stream));
  apex::cuda::synchronize(ctx);
  if (fault.flat != ~0ull) throw_index_fault(bounds, once, static_cast<std::int64_t>(fault.flat), fault.value);
}

}  // namespace apex::kernels::cuda
