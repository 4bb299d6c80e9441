// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../scan_impl.hpp"
#include "convert.hpp"
#include "loop.hpp"

namespace apex::kernels::cpu {

void cumsum(const Context&, View out, ConstView x, int dim, bool reverse) {
  if (x.numel() == 0) return;
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const auto lines = make_loop<2>(sizes, {out.strides, x.strides});
  const std::int64_t length = x.sizes[dim];
  const std::int64_t to_step = reverse ? -out.strides[dim] : out.strides[dim];
  const std::int64_t from_step = reverse ? -x.strides[dim] : x.strides[dim];
  const std::int64_t to_first = reverse ? (length - 1) * out.strides[dim] : 0;
  const std::int64_t from_first = reverse ? (length - 1) * x.strides[dim] : 0;
  visit_any(x.dtype, "cumsum", [&]<class T>() {
    using Out = std::conditional_t<is_floating_type<T>, T, std::int64_t>;
    using Sum = std::conditional_t<is_floating_type<T>, double, std::uint64_t>;  // integers wrap
    constexpr std::int64_t kWidth = 64;  // lines side by side, so that memory is read in rows where it lies in rows
    parallel_ranges(lines.numel, length, [&](std::int64_t begin, std::int64_t end) {
      for_each_row(lines, begin, end, [&](const auto& offset, std::int64_t n) {
        for (std::int64_t k = 0; k < n; k += kWidth) {
          const std::int64_t width = std::min(kWidth, n - k);
          const std::int64_t so = lines.inner_stride(0), sx = lines.inner_stride(1);
          Out* to = out.as<Out>() + offset[0] + k * so + to_first;
          const T* from = x.as<T>() + offset[1] + k * sx + from_first;
          Sum sum[kWidth] = {};
          for (std::int64_t i = 0; i < length; ++i, to += to_step, from += from_step)
            for (std::int64_t w = 0; w < width; ++w) {
              sum[w] += static_cast<Sum>(
                  convert<std::conditional_t<is_floating_type<T>, double, std::int64_t>>(from[w * sx]));
              to[w * so] = convert<Out>(sum[w]);
            }
        }
      });
    });
  });
}

}  // namespace apex::kernels::cpu
