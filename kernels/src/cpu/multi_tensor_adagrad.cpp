// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_step.hpp"

namespace apex::kernels::cpu {

void multi_tensor_adagrad(const Context&, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options) {
  if (skips(options.in)) return;
  with_compute_type(is_wide(params), [&]<class C>() {
    const optimizer::Adagrad<C> adagrad(options);
    const StepValues<C> values(options.in, options.lr);
    for_each_piece(params, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      in_blocks(begin, end, [&](std::int64_t at, std::int64_t n) {
        C p_buffer[kBlock], g_buffer[kBlock];
        C* p = target<C>(params[i], at, p_buffer);
        C* h = sums[i].as<C>() + at;
        staged<C>(params[i], at, n, p);
        const C* grad = staged<C>(grads[i], at, n, g_buffer);
        const auto a = adagrad;
        const C lr = values.lr, scale = values.scale;
        if (options.adagrad_w_mode) {
#pragma omp simd
          for (std::int64_t k = 0; k < n; ++k) p[k] = a.template step<true>(p[k], h[k], grad[k] * scale, lr);
        } else {
#pragma omp simd
          for (std::int64_t k = 0; k < n; ++k) p[k] = a.template step<false>(p[k], h[k], grad[k] * scale, lr);
        }
        put_back(params[i], at, n, p);
        if (!copies.empty()) put_copy(copies[i], at, n, p);
      });
    });
  });
}

}  // namespace apex::kernels::cpu
