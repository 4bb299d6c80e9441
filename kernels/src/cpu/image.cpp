// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../image_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

namespace apex::kernels::cpu {

void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std) {
  const std::int64_t c = x.size(1), h = x.size(2), w = x.size(3);
  visit_floating(y.dtype, "image_normalize", [&]<class T>() {
    using C = compute_t<T>;
    // A pixel has 256 values: the arithmetic and the rounding are done once for each.
    const Workspace memory = ctx.workspace(static_cast<std::size_t>(c) * 256 * sizeof(T));
    T* table = memory.as<T>();
    for (std::int64_t k = 0; k < c; ++k)
      for (std::int64_t v = 0; v < 256; ++v) {
        const auto i = static_cast<std::size_t>(k);
        table[k * 256 + v] = convert<T>((static_cast<C>(v) - static_cast<C>(mean[i])) / static_cast<C>(std[i]));
      }
    parallel_for(x.size(0) * h, c * w, [&](std::int64_t row) {
      const std::int64_t n = row / h, i = row % h;
      for (std::int64_t k = 0; k < c; ++k) {
        const T* values = table + k * 256;
        const std::uint8_t* from = x.as<std::uint8_t>() + n * x.stride(0) + k * x.stride(1) + i * x.stride(2);
        T* to = y.as<T>() + n * y.stride(0) + k * y.stride(1) + i * y.stride(2);
        for (std::int64_t j = 0; j < w; ++j) to[j * y.stride(3)] = values[from[j * x.stride(3)]];
      }
    });
  });
}

}  // namespace apex::kernels::cpu
