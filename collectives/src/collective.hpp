// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include "engine.hpp"
#include "runtime.hpp"

namespace apex::dist::detail {

/// A block of elements of one dtype.
struct Block {
  void* data = nullptr;
  DType dtype = DType::u8;
  std::int64_t count = 0;
};

// Each adds the phases of one collective on the channel's communicator to `op`. A channel of one rank needs none.
void add_all_reduce(Operation& op, Runtime& rt, const Channel& channel, Block block, ReduceOp reduce);
void add_broadcast(Operation& op, Runtime& rt, const Channel& channel, Block block, int root);
/// out holds size * in.count elements; in may be this rank's part of it.
void add_all_gather(Operation& op, Runtime& rt, const Channel& channel, void* out, Block in);
void add_reduce_scatter(Operation& op, Runtime& rt, const Channel& channel, Block out, const void* in, ReduceOp reduce);
void add_barrier(Operation& op, const Channel& channel);

/// An operation that so far only compares itself across ranks, where the Session asks for that; a difference is an
/// error of the operation on every rank.
std::shared_ptr<Operation> make_operation(const Channel& channel, const char* name, const char* detail, Block block,
                                          int root, const Label& label);
Work issue(Runtime& rt, Channel& channel, std::shared_ptr<Operation> operation);

// Blocking forms, for host values.
void all_reduce(Runtime& rt, Channel& channel, Block block, ReduceOp reduce, const Label& label);
std::string broadcast_bytes(Runtime& rt, Channel& channel, std::string bytes, int root, const Label& label);

}  // namespace apex::dist::detail
