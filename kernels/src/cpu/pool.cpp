// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include "../pool_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

// Pooling in plain loops for f32 and f64 alike; 16-bit tensors pass through f32 scratch and are rounded once.
// Channels-last: a pixel is a row of channels and every step is a vector operation over it. Row-major: plane by plane.
// Gradients are gathered per input pixel, so nothing is added twice and threads never meet.

namespace apex::kernels::cpu {
namespace {

/// The windows along one dimension, and for each input position the outputs whose window covers it (a range, because
/// both bounds of a window never decrease).
struct Windows {
  std::vector<std::int64_t> begin, end;   // of output o, inside the input
  std::vector<std::int64_t> divisor;      // length that counts for an average
  std::vector<std::int64_t> first, last;  // outputs [first, last) of input i

  static Windows strided(std::int64_t in, std::int64_t out, const Pool2dOptions& options, std::size_t d) {
    Windows w;
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t from = o * options.stride[d] - options.padding[d], to = from + options.kernel[d];
      w.add(std::max<std::int64_t>(from, 0), std::min(to, in));
      if (options.count_include_pad) w.divisor.back() = std::min(to, in + options.padding[d]) - from;
    }
    w.invert(in);
    return w;
  }
  static Windows adaptive(std::int64_t in, std::int64_t out) {
    Windows w;
    for (std::int64_t o = 0; o < out; ++o) w.add(o * in / out, ((o + 1) * in + out - 1) / out);
    w.invert(in);
    return w;
  }
  std::int64_t outputs() const { return static_cast<std::int64_t>(begin.size()); }
  std::int64_t inputs() const { return static_cast<std::int64_t>(first.size()); }

 private:
  void add(std::int64_t from, std::int64_t to) {
    begin.push_back(from);
    end.push_back(to);
    divisor.push_back(to - from);
  }
  void invert(std::int64_t in) {
    std::int64_t low = 0, high = 0;
    for (std::int64_t i = 0; i < in; ++i) {
      while (low < outputs() && end[static_cast<std::size_t>(low)] <= i) ++low;
      while (high < outputs() && begin[static_cast<std::size_t>(high)] <= i) ++high;
      first.push_back(low);
      last.push_back(std::max(high, low));
    }
  }
};

std::int64_t at(const std::vector<std::int64_t>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

/// What an average divides by; the product of two lengths may be beyond int64.
template <class T, class Windows>
T divisor_of(const Windows& v, const Windows& h, std::int64_t i, std::int64_t j) {
  return static_cast<T>(at(v.divisor, i)) * static_cast<T>(at(h.divisor, j));
}

struct Layout {
  std::int64_t n, c;
  bool rows;  // channels-last
  Layout(const ConstView& x, const ConstView& y)
      : n(x.size(0)), c(x.size(1)), rows(!(x.is_contiguous() && y.is_contiguous())) {}
};

/// Calls f(data of `to`, data of `from`) with f32 or f64 elements, to's to be filled. 16-bit ones are widened before
/// and narrowed afterwards.
template <class F>
void in_wide_type(const Context& ctx, const View& to, const ConstView& from, const char* op, F&& f) {
  visit_floating(from.dtype, op, [&]<class T>() {
    if constexpr (is_half_type<T>) {
      const std::int64_t n_to = to.numel(), n_from = from.numel();
      const Workspace memory = ctx.workspace(static_cast<std::size_t>(n_to + n_from) * sizeof(float));
      float* out = memory.as<float>();
      float* in = out + n_to;
      parallel_ranges(n_from, 1, [&](std::int64_t begin, std::int64_t end) {
        load_block(in + begin, from.as<T>() + begin, 1, end - begin);
      });
      f(out, static_cast<const float*>(in));
      parallel_ranges(n_to, 1, [&](std::int64_t begin, std::int64_t end) {
        store_block(to.as<T>() + begin, 1, out + begin, end - begin);
      });
    } else {
      f(to.as<T>(), from.as<T>());
    }
  });
}

template <class T>
void max_rows(T* y, std::int32_t* indices, const T* x, const Layout& l, const Windows& v, const Windows& h) {
  const std::int64_t out_h = v.outputs(), out_w = h.outputs(), in_w = h.inputs(), c = l.c;
  parallel_ranges(l.n * out_h, out_w * c * 4, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> unwanted(indices == nullptr ? static_cast<std::size_t>(c) : 0);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* image = x + row / out_h * v.inputs() * in_w * c;
      const std::int64_t i = row % out_h;
      for (std::int64_t j = 0; j < out_w; ++j) {
        T* best = y + (row * out_w + j) * c;
        std::int32_t* where = indices == nullptr ? unwanted.data() : indices + (row * out_w + j) * c;
        bool fresh = true;
        for (std::int64_t p = at(v.begin, i); p < at(v.end, i); ++p)
          for (std::int64_t q = at(h.begin, j); q < at(h.end, j); ++q, fresh = false) {
            const auto position = static_cast<std::int32_t>(p * in_w + q);
            const T* from = image + static_cast<std::int64_t>(position) * c;
            if (fresh) {
              std::copy_n(from, c, best);
              std::fill_n(where, c, position);
              continue;
            }
#pragma omp simd
            for (std::int64_t k = 0; k < c; ++k) {
              const T value = from[k], held = best[k];
              const bool takes = (value > held) | ((value != value) & (held == held));
              best[k] = takes ? value : held;
              where[k] = takes ? position : where[k];
            }
          }
      }
    }
  });
}

template <class T>
void max_planes(T* y, std::int32_t* indices, const T* x, const Layout& l, const Windows& v, const Windows& h) {
  const std::int64_t out_w = h.outputs(), in_w = h.inputs(), out = v.outputs() * out_w, in = v.inputs() * in_w;
  parallel_for(l.n * l.c, in, [&](std::int64_t plane) {
    const T* from = x + plane * in;
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t i = o / out_w, j = o % out_w;
      std::int64_t where = at(v.begin, i) * in_w + at(h.begin, j);
      T best = from[where];
      for (std::int64_t p = at(v.begin, i); p < at(v.end, i); ++p)
        for (std::int64_t q = at(h.begin, j); q < at(h.end, j); ++q) {
          const T value = from[p * in_w + q];
          if (value > best || (value != value && best == best)) {
            best = value;
            where = p * in_w + q;
          }
        }
      y[plane * out + o] = best;
      if (indices != nullptr) indices[plane * out + o] = static_cast<std::int32_t>(where);
    }
  });
}

template <class T>
void max_backward_rows(T* dx, const T* dy, const std::int32_t* indices, const Layout& l, const Windows& v,
                       const Windows& h) {
  const std::int64_t in_h = v.inputs(), in_w = h.inputs(), out_w = h.outputs(), c = l.c;
  parallel_for(l.n * in_h, in_w * c * 2, [&](std::int64_t row) {
    const std::int64_t p = row % in_h, image = row / in_h * v.outputs() * out_w * c;
    for (std::int64_t q = 0; q < in_w; ++q) {
      T* to = dx + (row * in_w + q) * c;
      const auto position = static_cast<std::int32_t>(p * in_w + q);
      std::fill_n(to, c, T(0));
      for (std::int64_t i = at(v.first, p); i < at(v.last, p); ++i)
        for (std::int64_t j = at(h.first, q); j < at(h.last, q); ++j) {
          const T* from = dy + image + (i * out_w + j) * c;
          const std::int32_t* where = indices + image + (i * out_w + j) * c;
#pragma omp simd
          for (std::int64_t k = 0; k < c; ++k) to[k] += where[k] == position ? from[k] : T(0);
        }
    }
  });
}

template <class T>
void max_backward_planes(T* dx, const T* dy, const std::int32_t* indices, const Layout& l, const Windows& v,
                         const Windows& h) {
  const std::int64_t in = v.inputs() * h.inputs(), out = v.outputs() * h.outputs();
  parallel_for(l.n * l.c, in, [&](std::int64_t plane) {
    T* to = dx + plane * in;
    std::fill_n(to, in, T(0));
    for (std::int64_t o = plane * out; o < (plane + 1) * out; ++o) to[indices[o]] += dy[o];
  });
}

template <class T>
void average_rows(T* y, const T* x, const Layout& l, const Windows& v, const Windows& h) {
  const std::int64_t out_h = v.outputs(), out_w = h.outputs(), in_w = h.inputs(), c = l.c;
  parallel_for(l.n * out_h * out_w, c * v.inputs() * in_w / (out_h * out_w), [&](std::int64_t pixel) {
    const std::int64_t i = pixel / out_w % out_h, j = pixel % out_w;
    const T* image = x + pixel / out_w / out_h * v.inputs() * in_w * c;
    T* to = y + pixel * c;
    std::fill_n(to, c, T(0));
    for (std::int64_t p = at(v.begin, i); p < at(v.end, i); ++p)
      for (std::int64_t q = at(h.begin, j); q < at(h.end, j); ++q) {
        const T* from = image + (p * in_w + q) * c;
#pragma omp simd
        for (std::int64_t k = 0; k < c; ++k) to[k] += from[k];
      }
    const T divisor = divisor_of<T>(v, h, i, j);
    for (std::int64_t k = 0; k < c; ++k) to[k] /= divisor;
  });
}

template <class T>
void average_planes(T* y, const T* x, const Layout& l, const Windows& v, const Windows& h) {
  const std::int64_t out_w = h.outputs(), in_w = h.inputs(), out = v.outputs() * out_w, in = v.inputs() * in_w;
  parallel_for(l.n * l.c, in, [&](std::int64_t plane) {
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t i = o / out_w, j = o % out_w, q = at(h.begin, j);
      T sum = 0;
      for (std::int64_t p = at(v.begin, i); p < at(v.end, i); ++p) {
        const T* from = x + plane * in + p * in_w + q;
        sum += simd::sum<T>(at(h.end, j) - q, [from](std::int64_t k) { return from[k]; });
      }
      y[plane * out + o] = sum / divisor_of<T>(v, h, i, j);
    }
  });
}

/// dx = sum over the windows that cover a pixel of dy / divisor; `c` channels lie together in memory.
template <class T>
void average_backward(T* dx, const T* dy, std::int64_t images, std::int64_t c, const Windows& v, const Windows& h) {
  const std::int64_t in_h = v.inputs(), in_w = h.inputs(), out_w = h.outputs();
  parallel_for(images * in_h, in_w * c, [&](std::int64_t row) {
    const std::int64_t p = row % in_h;
    const T* image = dy + row / in_h * v.outputs() * out_w * c;
    for (std::int64_t q = 0; q < in_w; ++q) {
      T* to = dx + (row * in_w + q) * c;
      std::fill_n(to, c, T(0));
      for (std::int64_t i = at(v.first, p); i < at(v.last, p); ++i)
        for (std::int64_t j = at(h.first, q); j < at(h.last, q); ++j) {
          const T share = T(1) / divisor_of<T>(v, h, i, j);
          const T* from = image + (i * out_w + j) * c;
#pragma omp simd
          for (std::int64_t k = 0; k < c; ++k) to[k] += from[k] * share;
        }
    }
  });
}

void average(const Context& ctx, const View& y, const ConstView& x, const Windows& v, const Windows& h) {
  const Layout l(x, y);
  in_wide_type(ctx, y, x, "avg_pool2d", [&](auto* to, const auto* from) {
    l.rows ? average_rows(to, from, l, v, h) : average_planes(to, from, l, v, h);
  });
}

void average_gradient(const Context& ctx, const View& dx, const ConstView& dy, const Windows& v, const Windows& h) {
  const Layout l(dx, dy);
  in_wide_type(ctx, dx, dy, "avg_pool2d", [&](auto* to, const auto* from) {
    average_backward(to, from, l.rows ? l.n : l.n * l.c, l.rows ? l.c : 1, v, h);
  });
}

}  // namespace

void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options) {
  if (y.numel() == 0) return;
  const Layout l(x, y);
  const auto v = Windows::strided(x.size(2), y.size(2), options, 0),
             h = Windows::strided(x.size(3), y.size(3), options, 1);
  auto* where = indices.defined() ? indices.as<std::int32_t>() : nullptr;
  in_wide_type(ctx, y, x, "max_pool2d", [&](auto* to, const auto* from) {
    l.rows ? max_rows(to, where, from, l, v, h) : max_planes(to, where, from, l, v, h);
  });
}

void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options) {
  if (dx.numel() == 0) return;
  const Layout l(dx, dy);
  const auto v = Windows::strided(dx.size(2), dy.size(2), options, 0),
             h = Windows::strided(dx.size(3), dy.size(3), options, 1);
  const auto* where = indices.as<std::int32_t>();
  in_wide_type(ctx, dx, dy, "max_pool2d_backward", [&](auto* to, const auto* from) {
    l.rows ? max_backward_rows(to, from, where, l, v, h) : max_backward_planes(to, from, where, l, v, h);
  });
}

void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options) {
  if (y.numel() == 0) return;
  average(ctx, y, x, Windows::strided(x.size(2), y.size(2), options, 0),
          Windows::strided(x.size(3), y.size(3), options, 1));
}

void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options) {
  if (dx.numel() == 0) return;
  average_gradient(ctx, dx, dy, Windows::strided(dx.size(2), dy.size(2), options, 0),
                   Windows::strided(dx.size(3), dy.size(3), options, 1));
}

void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x) {
  if (y.numel() == 0) return;
  average(ctx, y, x, Windows::adaptive(x.size(2), y.size(2)), Windows::adaptive(x.size(3), y.size(3)));
}

void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy) {
  if (dx.numel() == 0) return;
  average_gradient(ctx, dx, dy, Windows::adaptive(dx.size(2), dy.size(2)), Windows::adaptive(dx.size(3), dy.size(3)));
}

}  // namespace apex::kernels::cpu
