// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/sort.hpp"

#include "checks.hpp"
#include "sort_impl.hpp"

namespace apex::kernels {

void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending) {
  check_given("sort", ctx, "x", x);
  const int d = check_dim("sort", dim, x.rank());
  check_optional("sort", ctx, "values", values);
  check_optional("sort", ctx, "indices", indices);
  if (values.defined()) {
    check_sizes("sort", "values", values, x.sizes);
    check_dtype("sort", "values", values, x.dtype);
    check_writable("sort", "values", values);
  }
  if (indices.defined()) {
    check_sizes("sort", "indices", indices, x.sizes);
    check_dtype("sort", "indices", indices, DType::i64);
    check_writable("sort", "indices", indices);
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::sort(ctx, values, indices, x, d, descending);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::sort(ctx, values, indices, x, d, descending);
  }
  throw_not_built("sort", ctx.device);
}

}  // namespace apex::kernels
