// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "collective.hpp"

#include <algorithm>
#include <cstring>

#include "apex/collectives/mpi.hpp"
#include "apex/core/simd.hpp"

namespace apex::dist::detail {
namespace {

std::byte* at(void* data, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
}
const std::byte* at(const void* data, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
}

/// Calls piece(begin, count) for consecutive pieces of at most `limit` elements.
template <class F>
void for_pieces(std::int64_t count, std::int64_t limit, F&& piece) {
  for (std::int64_t begin = 0; begin < count; begin += limit) piece(begin, std::min(limit, count - begin));
}

/// Elements per rank such that all ranks' parts together stay in one MPI call.
std::int64_t limit_per_rank(const Runtime& rt, int size) {
  return std::max<std::int64_t>(1, rt.options.max_count / size);
}

/// Sums in rank order matter for types that round; the others come out the same in any order.
bool wants_order(const Runtime& rt, DType dtype, ReduceOp reduce) {
  return rt.options.deterministic && is_floating(dtype) && reduce != ReduceOp::min && reduce != ReduceOp::max;
}

/// Deterministic sum of one piece: all-to-all, each owner adds its part in rank order, all-gather.
void add_ordered_all_reduce(Operation& op, MPI_Datatype type, const Channel& channel, Block piece, ReduceOp reduce) {
  struct Plan {
    std::vector<int> counts, starts, own_counts, own_starts;
    std::vector<std::byte> parts;
  };
  const auto plan = std::make_shared<Plan>();
  const int size = channel.size;
  for (int r = 0; r < size; ++r) {
    const auto [begin, end] = simd::split(piece.count, r, size);
    plan->starts.push_back(static_cast<int>(begin));
    plan->counts.push_back(static_cast<int>(end - begin));
  }
  const int own = plan->counts[static_cast<std::size_t>(channel.rank)];
  for (int r = 0; r < size; ++r) {
    plan->own_counts.push_back(own);
    plan->own_starts.push_back(r * own);
  }
  const MPI_Comm comm = channel.comm;
  op.communicate([=](Operation::Requests& requests) {
    plan->parts.resize(static_cast<std::size_t>(own) * static_cast<std::size_t>(size) * size_of(piece.dtype));
    APEX_CHECK_MPI(MPI_Ialltoallv(piece.data, plan->counts.data(), plan->starts.data(), type, plan->parts.data(),
                                  plan->own_counts.data(), plan->own_starts.data(), type, comm,
                                  &requests.emplace_back()));
  });
  const int rank = channel.rank;
  op.communicate([=](Operation::Requests& requests) {
    void* mine = at(piece.data, piece.dtype, plan->starts[static_cast<std::size_t>(rank)]);
    reduce_in_order(piece.dtype, reduce, mine, plan->parts.data(), own, size);
    APEX_CHECK_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, piece.data, plan->counts.data(), plan->starts.data(), type,
                                   comm, &requests.emplace_back()));
  });
}

/// What a rank shows of a collective before it starts.
struct Fingerprint {
  std::uint64_t sequence;
  std::int64_t count;
  int root;
  std::uint8_t dtype;
  char op[24], detail[8];
  std::uint64_t label;
  char text[256];

  bool matches(const Fingerprint& o) const {
    return sequence == o.sequence && count == o.count && root == o.root && dtype == o.dtype && label == o.label &&
           std::strcmp(op, o.op) == 0 && std::strcmp(detail, o.detail) == 0;
  }
};

Fingerprint fingerprint(const Description& d) {
  Fingerprint f{};
  f.sequence = d.sequence;
  f.count = d.count;
  f.root = d.root;
  f.dtype = static_cast<std::uint8_t>(d.dtype);
  f.label = std::hash<std::string>{}(d.label);
  std::strncpy(f.op, d.op, sizeof f.op - 1);
  std::strncpy(f.detail, d.detail, sizeof f.detail - 1);
  std::strncpy(f.text, to_string(d).c_str(), sizeof f.text - 1);
  return f;
}

void throw_on_difference(const std::vector<Fingerprint>& all, const std::string& channel) {
  if (std::all_of(all.begin(), all.end(), [&](const auto& f) { return f.matches(all[0]); })) return;
  std::string text = concat("the ranks of ", channel, " disagree on their next collective:");
  std::vector<bool> told(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (told[r]) continue;
    std::string who;
    for (std::size_t q = r; q < all.size(); ++q)
      if (all[q].matches(all[r])) {
        told[q] = true;
        who += concat(who.empty() ? "" : ",", q);
      }
    text += concat(r == 0 ? " rank " : "; rank ", who, " wants ", all[r].text);
  }
  fail(Kind::communication, text);
}

/// Puts a comparison of fingerprints before everything else the operation does.
void add_comparison(Operation& op, const Channel& channel) {
  if (channel.debug_comm == MPI_COMM_NULL || channel.size == 1) return;
  const auto all = std::make_shared<std::vector<Fingerprint>>(static_cast<std::size_t>(channel.size));
  op.communicate([=, &op, &channel](Operation::Requests& requests) {
    (*all)[static_cast<std::size_t>(channel.rank)] = fingerprint(op.description);
    APEX_CHECK_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all->data(), sizeof(Fingerprint), MPI_BYTE,
                                  channel.debug_comm, &requests.emplace_back()));
  });
  op.compute([=, &channel] { throw_on_difference(*all, channel.label); });
}

}  // namespace

void add_all_reduce(Operation& op, Runtime& rt, const Channel& channel, Block block, ReduceOp reduce) {
  const MPI_Op mpi_op = rt.types.op(block.dtype, reduce, "all_reduce");
  const MPI_Datatype type = rt.types.type(block.dtype);
  if (channel.size == 1) return;
  for_pieces(block.count, rt.options.max_count, [&](std::int64_t begin, std::int64_t count) {
    const Block piece{at(block.data, block.dtype, begin), block.dtype, count};
    if (wants_order(rt, block.dtype, reduce)) return add_ordered_all_reduce(op, type, channel, piece, reduce);
    op.communicate([=, comm = channel.comm](Operation::Requests& requests) {
      APEX_CHECK_MPI(MPI_Iallreduce(MPI_IN_PLACE, piece.data, static_cast<int>(piece.count), type, mpi_op, comm,
                                    &requests.emplace_back()));
    });
  });
  if (reduce == ReduceOp::avg)
    op.compute([=, size = channel.size] { divide(block.dtype, block.data, block.count, size); });
}

void add_broadcast(Operation& op, Runtime& rt, const Channel& channel, Block block, int root) {
  if (channel.size == 1) return;
  const MPI_Datatype type = rt.types.type(block.dtype);
  for_pieces(block.count, rt.options.max_count, [&](std::int64_t begin, std::int64_t count) {
    op.communicate([=, comm = channel.comm](Operation::Requests& requests) {
      APEX_CHECK_MPI(MPI_Ibcast(at(block.data, block.dtype, begin), static_cast<int>(count), type, root, comm,
                                &requests.emplace_back()));
    });
  });
}

void add_all_gather(Operation& op, Runtime& rt, const Channel& channel, void* out, Block in) {
  const int size = channel.size;
  std::byte* own = at(out, in.dtype, channel.rank * in.count);
  const std::size_t element = size_of(in.dtype);
  op.compute([=] {
    if (own != in.data && in.count > 0) std::memcpy(own, in.data, static_cast<std::size_t>(in.count) * element);
  });
  if (size == 1) return;
  const MPI_Datatype type = rt.types.type(in.dtype);
  const std::int64_t limit = limit_per_rank(rt, size);
  if (in.count <= limit) {
    if (in.count > 0)
      op.communicate([=, comm = channel.comm](Operation::Requests& requests) {
        APEX_CHECK_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, type, out, static_cast<int>(in.count), type, comm,
                                      &requests.emplace_back()));
      });
    return;
  }
  // The parts of one piece do not lie side by side in `out`: gather them into scratch and copy.
  const auto scratch = std::make_shared<std::vector<std::byte>>();
  for_pieces(in.count, limit, [&](std::int64_t begin, std::int64_t count) {
    op.communicate([=, comm = channel.comm](Operation::Requests& requests) {
      scratch->resize(static_cast<std::size_t>(count * size) * element);
      APEX_CHECK_MPI(MPI_Iallgather(at(own, in.dtype, begin), static_cast<int>(count), type, scratch->data(),
                                    static_cast<int>(count), type, comm, &requests.emplace_back()));
    });
    op.compute([=] {
      for (int r = 0; r < size; ++r)
        std::memcpy(at(out, in.dtype, r * in.count + begin), at(scratch->data(), in.dtype, r * count),
                    static_cast<std::size_t>(count) * element);
    });
  });
}

void add_reduce_scatter(Operation& op, Runtime& rt, const Channel& channel, Block out, const void* in,
                        ReduceOp reduce) {
  const MPI_Op mpi_op = rt.types.op(out.dtype, reduce, "reduce_scatter");
  const MPI_Datatype type = rt.types.type(out.dtype);
  const std::size_t element = size_of(out.dtype);
  const int size = channel.size;
  const bool ordered = wants_order(rt, out.dtype, reduce);
  if (size == 1) {
    op.compute([=] {
      if (out.count > 0) std::memcpy(out.data, in, static_cast<std::size_t>(out.count) * element);
    });
    return;
  }
  const std::int64_t limit = limit_per_rank(rt, size);
  const auto send = std::make_shared<std::vector<std::byte>>();
  const auto parts = std::make_shared<std::vector<std::byte>>();
  for_pieces(out.count, limit, [&](std::int64_t begin, std::int64_t count) {
    const bool whole = count == out.count;
    op.communicate([=, comm = channel.comm](Operation::Requests& requests) {
      const void* from = in;
      const auto piece_bytes = static_cast<std::size_t>(count) * element;
      if (!whole) {  // bring the piece of every rank together
        send->resize(piece_bytes * static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
          std::memcpy(at(send->data(), out.dtype, r * count), at(in, out.dtype, r * out.count + begin), piece_bytes);
        from = send->data();
      }
      if (ordered) {
        parts->resize(piece_bytes * static_cast<std::size_t>(size));
        APEX_CHECK_MPI(MPI_Ialltoall(from, static_cast<int>(count), type, parts->data(), static_cast<int>(count), type,
                                     comm, &requests.emplace_back()));
      } else {
        APEX_CHECK_MPI(MPI_Ireduce_scatter_block(from, at(out.data, out.dtype, begin), static_cast<int>(count), type,
                                                 mpi_op, comm, &requests.emplace_back()));
      }
    });
    if (ordered)
      op.compute(
          [=] { reduce_in_order(out.dtype, reduce, at(out.data, out.dtype, begin), parts->data(), count, size); });
  });
  if (reduce == ReduceOp::avg) op.compute([=] { divide(out.dtype, out.data, out.count, size); });
}

void add_barrier(Operation& op, const Channel& channel) {
  if (channel.size == 1) return;
  op.communicate([comm = channel.comm](Operation::Requests& requests) {
    APEX_CHECK_MPI(MPI_Ibarrier(comm, &requests.emplace_back()));
  });
}

std::shared_ptr<Operation> make_operation(const Channel& channel, const char* name, const char* detail, Block block,
                                          int root, const Label& label) {
  auto op = std::make_shared<Operation>();
  op->description = {.op = name,
                     .detail = detail,
                     .dtype = block.dtype,
                     .count = block.count,
                     .root = root,
                     .label = std::string(label.text),
                     .where = label.where};
  op->bytes = block.count * static_cast<std::int64_t>(size_of(block.dtype));
  add_comparison(*op, channel);
  return op;
}

Work issue(Runtime& rt, Channel& channel, std::shared_ptr<Operation> operation) {
  rt.engine().submit(channel, operation);
  return Work(std::move(operation));
}

void all_reduce(Runtime& rt, Channel& channel, Block block, ReduceOp reduce, const Label& label) {
  auto op = make_operation(channel, "all_reduce", to_string(reduce), block, -1, label);
  add_all_reduce(*op, rt, channel, block, reduce);
  issue(rt, channel, std::move(op)).wait();
}

std::string broadcast_bytes(Runtime& rt, Channel& channel, std::string bytes, int root, const Label& label) {
  auto length = static_cast<std::int64_t>(bytes.size());
  const auto send = [&](Block block) {
    auto op = make_operation(channel, "broadcast", "", block, root, label);
    add_broadcast(*op, rt, channel, block, root);
    issue(rt, channel, std::move(op)).wait();
  };
  send({&length, DType::i64, 1});
  bytes.resize(static_cast<std::size_t>(length));
  if (length > 0) send({bytes.data(), DType::u8, length});
  return bytes;
}

}  // namespace apex::dist::detail
