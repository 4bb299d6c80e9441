// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../copy_impl.hpp"
#include "convert.hpp"
#include "parallel.hpp"

namespace apex::kernels::cpu {

/// Calls f.operator()<T>() for the two 16-bit types.
template <class F>
void visit_halves(DType dtype, F&& f) {
  if (dtype == DType::f16)
    f.template operator()<float16>();
  else
    f.template operator()<bfloat16>();
}

/// The f32 stand-in of a 16-bit view for the time of one op: the same strides where the view is dense, else row-major.
/// An undefined view has an undefined stand-in.
class Widened {
 public:
  enum class Contents { loaded, uninitialised };

  Widened(const Context& ctx, const ConstView& v, Contents contents = Contents::loaded) {
    if (!v.defined()) return;
    workspace_ = ctx.workspace(static_cast<std::size_t>(v.numel()) * sizeof(float));
    dense_ = is_non_overlapping_and_dense(v.sizes, v.strides);
    view_.data = workspace_.data();
    view_.dtype = DType::f32;
    view_.device = v.device;
    view_.sizes = v.sizes;
    view_.strides = dense_ ? v.strides : strides_for(v.sizes);
    view_.present = true;
    if (contents == Contents::uninitialised) return;
    if (!dense_) {
      copy(ctx, view_, v);
      return;
    }
    visit_halves(v.dtype, [&]<class T>() {
      parallel_ranges(v.numel(), 1, [&](std::int64_t begin, std::int64_t end) {
        load_halves(view_.template as<float>() + begin, v.template as<T>() + begin, end - begin);
      });
    });
  }

  const View& view() const { return view_; }

  /// Rounds into the view it stands for.
  void store(const Context& ctx, const View& to) const {
    if (!view_.defined()) return;
    if (!dense_) return copy(ctx, to, view_);
    visit_halves(to.dtype, [&]<class T>() {
      parallel_ranges(to.numel(), 1, [&](std::int64_t begin, std::int64_t end) {
        store_halves(to.template as<T>() + begin, view_.template as<float>() + begin, end - begin);
      });
    });
  }

 private:
  Workspace workspace_;
  View view_;
  bool dense_ = true;
};

}  // namespace apex::kernels::cpu
