// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include "apex/collectives/process_group.hpp"
#include "apex/core/dtype.hpp"

namespace apex::dist::detail {

/// MPI's names for our dtypes and reductions. MPI knows no 16-bit floating types: they get a two-byte type and
/// reductions of their own, which add in f32 and round once per step. Made after MPI_Init, freed before MPI_Finalize.
class MpiTypes {
 public:
  void create();
  void release();

  MPI_Datatype type(DType dtype) const;
  /// `avg` gives the sum. @throws Kind::argument for a reduction the dtype has not, naming `op_name`
  MPI_Op op(DType dtype, ReduceOp op, const char* op_name) const;

 private:
  MPI_Datatype f16_ = MPI_DATATYPE_NULL, bf16_ = MPI_DATATYPE_NULL;
  MPI_Op ops_[2][4] = {};  // [f16, bf16][sum, product, min, max]
};

/// @throws Kind::argument when `op` is not defined for `dtype`
void check_reduction(DType dtype, ReduceOp op, const char* op_name);

/// out[i] = parts[0][i] op parts[1][i] op ..., in that order, in the accumulation type, rounded once. `parts` are
/// `ranks` blocks of `count` elements, one after the other; out may not overlap them.
void reduce_in_order(DType dtype, ReduceOp op, void* out, const void* parts, std::int64_t count, int ranks);

/// data[i] *= 1 / ranks, rounded in the dtype.
void divide(DType dtype, void* data, std::int64_t count, int ranks);

}  // namespace apex::dist::detail
