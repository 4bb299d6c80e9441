// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "mpi_types.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>

#include "apex/collectives/mpi.hpp"

namespace apex {

std::string StatusTraits<MpiStatus>::text(MpiStatus status) {
  char buffer[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status.code, buffer, &length);
  return std::string(buffer, static_cast<std::size_t>(length));
}

}  // namespace apex

namespace apex::dist::detail {
namespace {

constexpr int kBlock = 256;  // 16-bit values are widened a block at a time, so that the loops vectorise

void widen(float* out, const bfloat16* in, int n) {
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]);
}

void narrow(bfloat16* out, const float* in, int n) {
  for (int i = 0; i < n; ++i) out[i] = bfloat16(in[i]);
}

void widen(float* out, const float16* in, int n) {
  int i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(in[i]);
}

void narrow(float16* out, const float* in, int n) {
  int i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  for (; i < n; ++i) out[i] = float16(in[i]);
}

struct Sum {
  template <class A>
  static A combine(A a, A b) {
    return static_cast<A>(a + b);
  }
};
struct Product {
  template <class A>
  static A combine(A a, A b) {
    return static_cast<A>(a * b);
  }
};
struct Min {
  template <class A>
  static A combine(A a, A b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class A>
  static A combine(A a, A b) {
    return a < b ? b : a;
  }
};

/// An MPI_User_function: inout[i] = in[i] op inout[i].
template <class T, class Op>
void reduce_16bit(void* in, void* inout, int* count, MPI_Datatype*) {
  const T* a = static_cast<const T*>(in);
  T* b = static_cast<T*>(inout);
  float x[kBlock], y[kBlock];
  for (int done = 0; done < *count; done += kBlock) {
    const int n = std::min(kBlock, *count - done);
    widen(x, a + done, n);
    widen(y, b + done, n);
    for (int i = 0; i < n; ++i) y[i] = Op::combine(x[i], y[i]);
    narrow(b + done, y, n);
  }
}

template <class T>
void create_ops(MPI_Op* ops) {
  APEX_CHECK_MPI(MPI_Op_create(&reduce_16bit<T, Sum>, 1, &ops[0]));
  APEX_CHECK_MPI(MPI_Op_create(&reduce_16bit<T, Product>, 1, &ops[1]));
  APEX_CHECK_MPI(MPI_Op_create(&reduce_16bit<T, Min>, 1, &ops[2]));
  APEX_CHECK_MPI(MPI_Op_create(&reduce_16bit<T, Max>, 1, &ops[3]));
}

template <class T, class Op>
void reduce_blocks(T* out, const T* parts, std::int64_t count, int ranks) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    float sum[kBlock], next[kBlock];
    for (std::int64_t done = 0; done < count; done += kBlock) {
      const int n = static_cast<int>(std::min<std::int64_t>(kBlock, count - done));
      widen(sum, parts + done, n);
      for (int r = 1; r < ranks; ++r) {
        widen(next, parts + r * count + done, n);
        for (int i = 0; i < n; ++i) sum[i] = Op::combine(sum[i], next[i]);
      }
      narrow(out + done, sum, n);
    }
  } else {
    std::copy_n(parts, count, out);
    for (int r = 1; r < ranks; ++r) {
      const T* next = parts + r * count;
      for (std::int64_t i = 0; i < count; ++i) out[i] = Op::combine(out[i], next[i]);
    }
  }
}

}  // namespace

void MpiTypes::create() {
  for (MPI_Datatype* type : {&f16_, &bf16_}) {
    APEX_CHECK_MPI(MPI_Type_contiguous(2, MPI_BYTE, type));
    APEX_CHECK_MPI(MPI_Type_commit(type));
  }
  create_ops<float16>(ops_[0]);
  create_ops<bfloat16>(ops_[1]);
}

void MpiTypes::release() {
  if (f16_ == MPI_DATATYPE_NULL) return;
  for (auto& row : ops_)
    for (MPI_Op& op : row) MPI_Op_free(&op);
  MPI_Type_free(&f16_);
  MPI_Type_free(&bf16_);
}

MPI_Datatype MpiTypes::type(DType dtype) const {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::f16: return f16_;
    case DType::bf16: return bf16_;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::u8:
    case DType::boolean: return MPI_UINT8_T;
  }
  throw_unsupported("collective", dtype);
}

MPI_Op MpiTypes::op(DType dtype, ReduceOp op, const char* op_name) const {
  check_reduction(dtype, op, op_name);
  const bool ours = is_16bit(dtype);
  const MPI_Op* mine = ops_[dtype == DType::f16 ? 0 : 1];
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return ours ? mine[0] : MPI_SUM;
    case ReduceOp::product: return ours ? mine[1] : MPI_PROD;
    case ReduceOp::min: return ours ? mine[2] : MPI_MIN;
    case ReduceOp::max: return ours ? mine[3] : MPI_MAX;
  }
  fail(Kind::argument, concat(op_name, ": unknown reduction"));
}

void check_reduction(DType dtype, ReduceOp op, const char* op_name) {
  const bool fits = is_floating(dtype)        ? true
                    : dtype == DType::boolean ? op == ReduceOp::min || op == ReduceOp::max
                                              : op != ReduceOp::avg;
  if (!fits)
    fail(Kind::argument, concat(op_name, ": ", to_string(op), " is not defined for ", dtype,
                                dtype == DType::boolean ? "; use min (all) or max (any)" : "; convert to f32 or f64"));
}

void reduce_in_order(DType dtype, ReduceOp op, void* out, const void* parts, std::int64_t count, int ranks) {
  visit_any(dtype, "reduce_in_order", [&]<class T>() {
    using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
    auto* to = static_cast<Stored*>(out);
    const auto* from = static_cast<const Stored*>(parts);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return reduce_blocks<Stored, Sum>(to, from, count, ranks);
      case ReduceOp::product: return reduce_blocks<Stored, Product>(to, from, count, ranks);
      case ReduceOp::min: return reduce_blocks<Stored, Min>(to, from, count, ranks);
      case ReduceOp::max: return reduce_blocks<Stored, Max>(to, from, count, ranks);
    }
  });
}

void divide(DType dtype, void* data, std::int64_t count, int ranks) {
  visit_floating(dtype, "avg", [&]<class T>() {
    using A = accum_t<T>;
    const A factor = A(1) / static_cast<A>(ranks);
    T* values = static_cast<T*>(data);
    for (std::int64_t i = 0; i < count; ++i) values[i] = T(static_cast<A>(values[i]) * factor);
  });
}

}  // namespace apex::dist::detail
