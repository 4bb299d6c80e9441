// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/collectives/process_group.hpp"

#include <algorithm>
#include <climits>
#include <new>

#include "apex/collectives/mpi.hpp"
#include "collective.hpp"
#include "runtime.hpp"

namespace apex::dist {

using detail::Block;
using detail::Channel;

const char* to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::product: return "product";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "unknown";
}

const char* to_string(Purpose purpose) noexcept {
  switch (purpose) {
    case Purpose::user: return "user";
    case Purpose::ddp: return "ddp";
    case Purpose::batch_norm: return "batch_norm";
    case Purpose::spatial: return "spatial";
    case Purpose::checkpoint: return "checkpoint";
  }
  return "unknown";
}

namespace detail {
namespace {

std::unique_ptr<Channel> make_channel(const Runtime& rt, MPI_Comm comm, const Group& group, int index) {
  auto channel = std::make_unique<Channel>();
  APEX_CHECK_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  channel->comm = comm;
  channel->rank = group.rank;
  channel->size = group.size;
  channel->purpose = index == kControl ? Purpose::user : static_cast<Purpose>(index);
  channel->label = concat(group.label, '/', index == kControl ? "control" : to_string(channel->purpose));
  if (rt.options.debug) {
    APEX_CHECK_MPI(MPI_Comm_dup(comm, &channel->debug_comm));
    APEX_CHECK_MPI(MPI_Comm_set_errhandler(channel->debug_comm, MPI_ERRORS_RETURN));
  }
  return channel;
}

std::vector<int> world_ranks_of(MPI_Comm comm, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size)), world(ranks.size());
  for (int r = 0; r < size; ++r) ranks[static_cast<std::size_t>(r)] = r;
  MPI_Group own, all;
  APEX_CHECK_MPI(MPI_Comm_group(comm, &own));
  APEX_CHECK_MPI(MPI_Comm_group(MPI_COMM_WORLD, &all));
  APEX_CHECK_MPI(MPI_Group_translate_ranks(own, size, ranks.data(), all, world.data()));
  MPI_Group_free(&own);
  MPI_Group_free(&all);
  return world;
}

}  // namespace

std::shared_ptr<Group> make_group(Runtime& rt, MPI_Comm comm, std::string label) {
  const Deadline limit(concat("making the communicators of group ", label));
  auto group = std::make_shared<Group>();
  group->label = std::move(label);
  APEX_CHECK_MPI(MPI_Comm_rank(comm, &group->rank));
  APEX_CHECK_MPI(MPI_Comm_size(comm, &group->size));
  group->world_ranks = world_ranks_of(comm, group->size);
  group->channels[kControl] = make_channel(rt, comm, *group, kControl);
  for (int i = 0; i < kPurposes; ++i) {
    MPI_Comm own;
    APEX_CHECK_MPI(MPI_Comm_dup(comm, &own));
    group->channels[i] = make_channel(rt, own, *group, i);
  }
  const std::scoped_lock lock(rt.groups_mutex);
  rt.groups.push_back(group);
  return group;
}

void close_groups(Runtime& rt) {
  const std::scoped_lock lock(rt.groups_mutex);
  for (const auto& group : rt.groups) {
    group->open = false;
    for (const auto& channel : group->channels) {
      if (channel->debug_comm != MPI_COMM_NULL) MPI_Comm_free(&channel->debug_comm);
      MPI_Comm_free(&channel->comm);
    }
  }
  rt.groups.clear();
}

}  // namespace detail

namespace {

Channel& control(const detail::Group& group) { return *group.channels[detail::kControl]; }

/// CPU tensors travel by MPI in every Session, CUDA tensors where the Session is on their device.
void check_device(const Tensor& tensor, const char* op) {
  const Device device = tensor.device();
  if (device.is_cpu()) return;
  if constexpr (!has_cuda) throw_not_built(op, device);
  const auto& link = detail::runtime().device;
  if (!link) fail(Kind::argument, concat(op, ": the tensor is on ", device, ", but the Session runs on the CPU"));
  if (link->device() != device)
    fail(Kind::argument, concat(op, ": the tensor is on ", device, ", but the Session runs on ", link->device()));
}

detail::DeviceLink& link_of(const Tensor& tensor, const char* op) {
  check_device(tensor, op);
  return *detail::runtime().device;
}

/// The elements of a dense tensor, whatever the order of its strides.
Block dense_block(const Tensor& tensor, const char* op) {
  if (!tensor.defined()) fail(Kind::argument, concat(op, ": the tensor is undefined"));
  check_device(tensor, op);
  if (!is_non_overlapping_and_dense(tensor.sizes(), tensor.strides()))
    fail(Kind::argument, concat(op, ": tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                                " is not dense; make a contiguous copy first"));
  return {tensor.raw_data(), tensor.dtype(), tensor.numel()};
}

Block contiguous_block(const Tensor& tensor, const char* op, const char* name) {
  if (!tensor.defined()) fail(Kind::argument, concat(op, ": ", name, " is undefined"));
  check_device(tensor, op);
  if (!tensor.is_contiguous())
    fail(Kind::argument, concat(op, ": ", name, " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                                " is not contiguous; make a contiguous copy first"));
  return {tensor.raw_data(), tensor.dtype(), tensor.numel()};
}

/// large = size parts of small's count, same dtype.
void check_parts(const char* op, const char* large_name, const Tensor& large, const char* small_name,
                 const Tensor& small, int size) {
  if (large.dtype() != small.dtype())
    fail(Kind::argument, concat(op, ": ", large_name, " is ", large.dtype(), ", ", small_name, " is ", small.dtype()));
  if (large.numel() != small.numel() * size)
    fail(Kind::argument, concat(op, ": ", large_name, " has ", large.numel(), " elements, but ", size, " times the ",
                                small.numel(), " of ", small_name, " are ", small.numel() * size));
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto* x = static_cast<const std::byte*>(a.raw_data());
  const auto* y = static_cast<const std::byte*>(b.raw_data());
  return a.numel() > 0 && b.numel() > 0 && std::less<>{}(x, y + b.bytes()) && std::less<>{}(y, x + a.bytes());
}

void check_root(const char* op, int root, int size) {
  if (root < 0 || root >= size)
    fail(Kind::argument, concat(op, ": root ", root, " is not a rank of a group of ", size));
}

Block block_of(std::span<double> values) {
  return {values.data(), DType::f64, static_cast<std::int64_t>(values.size())};
}
Block block_of(std::span<std::int64_t> values) {
  return {values.data(), DType::i64, static_cast<std::int64_t>(values.size())};
}

}  // namespace

Channel& detail::channel_of(const ProcessGroup& group) { return group.open_channel(); }

ProcessGroup ProcessGroup::world() {
  auto& rt = detail::runtime();
  const std::scoped_lock lock(rt.groups_mutex);
  return {rt.groups.front(), Purpose::user};
}

const detail::Group& ProcessGroup::group() const {
  if (!group_) fail(Kind::state, "a null process group was used; only its members may");
  return *group_;
}

Channel& ProcessGroup::open_channel() const {
  const auto& g = group();
  if (!g.open) fail(Kind::state, concat("group ", g.label, " was used after its Session ended"));
  return *g.channels[static_cast<int>(purpose_)];
}

ProcessGroup ProcessGroup::make(int color, int key, std::string label) const {
  open_channel();
  MPI_Comm comm = MPI_COMM_NULL;
  {
    const Deadline limit(concat("splitting group ", group().label));
    APEX_CHECK_MPI(MPI_Comm_split(control(group()).comm, color < 0 ? MPI_UNDEFINED : color, key, &comm));
  }
  return adopt(comm, std::move(label));
}

ProcessGroup ProcessGroup::adopt(MPI_Comm comm, std::string label) const {
  auto& rt = detail::runtime();
  std::shared_ptr<detail::Group> made;
  if (comm != MPI_COMM_NULL) made = detail::make_group(rt, comm, std::move(label));
  if (rt.device) rt.device->connect(made.get(), group_.get());
  if (!made) return {};
  return {std::move(made), purpose_, in_stream_};
}

ProcessGroup ProcessGroup::split(int color, int key, std::string label) const {
  return make(color, key, label.empty() ? concat(group().label, ".split", color) : std::move(label));
}

ProcessGroup ProcessGroup::subgroup(std::span<const int> ranks, std::string label) const {
  if (ranks.empty()) fail(Kind::argument, "subgroup: the list of ranks is empty");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size())
      fail(Kind::argument, concat("subgroup: ", ranks[i], " is not a rank of a group of ", size()));
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i))
      fail(Kind::argument, concat("subgroup: rank ", ranks[i], " is listed twice"));
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  const bool member = mine != ranks.end();
  if (label.empty()) label = concat(group().label, ".sub", ranks.front(), '-', ranks.back());
  return make(member ? 0 : -1, static_cast<int>(mine - ranks.begin()), std::move(label));
}

ProcessGroup ProcessGroup::partition(int group_size, std::string label) const {
  if (group_size < 1 || size() % group_size != 0)
    fail(Kind::argument, concat("partition: group size ", group_size, " does not divide the ", size(),
                                " ranks of group ", group().label));
  const int part = rank() / group_size;
  if (label.empty()) label = concat(group().label, ".part", part);
  return make(part, rank(), std::move(label));
}

ProcessGroup ProcessGroup::node_local() const {
  open_channel();
  MPI_Comm comm = MPI_COMM_NULL;
  {
    const Deadline limit(concat("finding the ranks of group ", group().label, " on this node"));
    APEX_CHECK_MPI(MPI_Comm_split_type(control(group()).comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &comm));
  }
  return adopt(comm, concat(group().label, ".node"));
}

ProcessGroup ProcessGroup::dup(std::string label) const { return make(0, rank(), std::move(label)); }

ProcessGroup ProcessGroup::channel(Purpose purpose) const {
  group();
  return {group_, purpose, in_stream_};
}

ProcessGroup ProcessGroup::in_stream() const {
  group();
  return {group_, purpose_, true};
}

Purpose ProcessGroup::purpose() const { return purpose_; }
const std::string& ProcessGroup::label() const { return group().label; }
int ProcessGroup::rank() const { return group().rank; }
int ProcessGroup::size() const { return group().size; }

int ProcessGroup::world_rank(int group_rank) const {
  check_root("world_rank", group_rank, size());
  return group().world_ranks[static_cast<std::size_t>(group_rank)];
}

MPI_Comm ProcessGroup::mpi_comm() const { return open_channel().comm; }

Work ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, Label label) const {
  Channel& channel = open_channel();
  const Block block = dense_block(tensor, "all_reduce");
  detail::check_reduction(tensor.dtype(), op, "all_reduce");
  if (tensor.device().is_cuda()) return link_of(tensor, "all_reduce").all_reduce(*this, tensor, op, label);
  auto& rt = detail::runtime();
  auto operation = detail::make_operation(channel, "all_reduce", to_string(op), block, -1, label);
  operation->storages = {tensor.storage()};
  detail::add_all_reduce(*operation, rt, channel, block, op);
  return detail::issue(rt, channel, std::move(operation));
}

Work ProcessGroup::broadcast(const Tensor& tensor, int root, Label label) const {
  Channel& channel = open_channel();
  const Block block = dense_block(tensor, "broadcast");
  check_root("broadcast", root, channel.size);
  if (tensor.device().is_cuda()) return link_of(tensor, "broadcast").broadcast(*this, tensor, root, label);
  auto& rt = detail::runtime();
  auto operation = detail::make_operation(channel, "broadcast", "", block, root, label);
  operation->storages = {tensor.storage()};
  detail::add_broadcast(*operation, rt, channel, block, root);
  return detail::issue(rt, channel, std::move(operation));
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in, Label label) const {
  Channel& channel = open_channel();
  const Block to = contiguous_block(out, "all_gather", "out"), from = contiguous_block(in, "all_gather", "in");
  check_parts("all_gather", "out", out, "in", in, channel.size);
  const bool in_place =
      from.data == static_cast<std::byte*>(to.data) + static_cast<std::size_t>(channel.rank) * in.bytes();
  if (!in_place && overlap(out, in))
    fail(Kind::argument, "all_gather: in overlaps out, but is not this rank's part of it");
  if (out.device() != in.device())
    fail(Kind::argument, concat("all_gather: out is on ", out.device(), ", in on ", in.device()));
  if (in.device().is_cuda()) return link_of(in, "all_gather").all_gather(*this, out, in, label);
  auto& rt = detail::runtime();
  auto operation = detail::make_operation(channel, "all_gather", "", from, -1, label);
  operation->storages = {out.storage(), in.storage()};
  detail::add_all_gather(*operation, rt, channel, to.data, from);
  return detail::issue(rt, channel, std::move(operation));
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Label label) const {
  Channel& channel = open_channel();
  const Block to = contiguous_block(out, "reduce_scatter", "out"), from = contiguous_block(in, "reduce_scatter", "in");
  check_parts("reduce_scatter", "in", in, "out", out, channel.size);
  if (overlap(out, in)) fail(Kind::argument, "reduce_scatter: in and out overlap");
  if (out.device() != in.device())
    fail(Kind::argument, concat("reduce_scatter: out is on ", out.device(), ", in on ", in.device()));
  detail::check_reduction(out.dtype(), op, "reduce_scatter");
  if (in.device().is_cuda()) return link_of(in, "reduce_scatter").reduce_scatter(*this, out, in, op, label);
  auto& rt = detail::runtime();
  auto operation = detail::make_operation(channel, "reduce_scatter", to_string(op), to, -1, label);
  operation->storages = {out.storage(), in.storage()};
  detail::add_reduce_scatter(*operation, rt, channel, to, from.data, op);
  return detail::issue(rt, channel, std::move(operation));
}

void ProcessGroup::barrier(Label label) const {
  Channel& channel = open_channel();
  auto operation = detail::make_operation(channel, "barrier", "", {}, -1, label);
  detail::add_barrier(*operation, channel);
  detail::issue(detail::runtime(), channel, std::move(operation)).wait();
}

double ProcessGroup::all_reduce(double value, ReduceOp op, Label label) const {
  all_reduce(std::span<double>(&value, 1), op, label);
  return value;
}

std::int64_t ProcessGroup::all_reduce(std::int64_t value, ReduceOp op, Label label) const {
  all_reduce(std::span<std::int64_t>(&value, 1), op, label);
  return value;
}

void ProcessGroup::all_reduce(std::span<double> values, ReduceOp op, Label label) const {
  detail::all_reduce(detail::runtime(), open_channel(), block_of(values), op, label);
}

void ProcessGroup::all_reduce(std::span<std::int64_t> values, ReduceOp op, Label label) const {
  detail::all_reduce(detail::runtime(), open_channel(), block_of(values), op, label);
}

std::string ProcessGroup::broadcast(std::string bytes, int root, Label label) const {
  Channel& channel = open_channel();
  check_root("broadcast", root, channel.size);
  return detail::broadcast_bytes(detail::runtime(), channel, std::move(bytes), root, label);
}

std::vector<std::string> ProcessGroup::all_gather(std::string_view bytes, Label label) const {
  Channel& channel = open_channel();
  auto& rt = detail::runtime();
  const auto gather = [&](void* out, Block in) {
    auto operation = detail::make_operation(channel, "all_gather", "", in, -1, label);
    detail::add_all_gather(*operation, rt, channel, out, in);
    detail::issue(rt, channel, std::move(operation)).wait();
  };
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(channel.size));
  auto length = static_cast<std::int64_t>(bytes.size());
  gather(lengths.data(), {&length, DType::i64, 1});
  // Padded to the longest, so that one gather serves any lengths.
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded(bytes);
  padded.resize(longest);
  std::string all(longest * lengths.size(), '\0');
  if (longest > 0) gather(all.data(), {padded.data(), DType::u8, static_cast<std::int64_t>(longest)});
  std::vector<std::string> result;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    result.push_back(all.substr(r * longest, static_cast<std::size_t>(lengths[r])));
  return result;
}

void ProcessGroup::agree(bool ok, std::string_view message, Kind kind, Label label) const {
  open_channel();
  auto& rt = detail::runtime();
  Channel& channel = control(group());
  std::int64_t first = ok ? channel.size : channel.rank;
  detail::all_reduce(rt, channel, {&first, DType::i64, 1}, ReduceOp::min, label);
  if (first == channel.size) return;
  if (channel.size == 1) fail(kind, message, label.where);
  const int failed = static_cast<int>(first);
  std::string text(1, static_cast<char>(kind));
  text += concat("rank ", world_rank(failed), ": ", message);
  text = detail::broadcast_bytes(rt, channel, std::move(text), failed, label);
  kind = static_cast<Kind>(text.front());
  text.erase(0, 1);
  if (channel.rank != failed) {
    const std::scoped_lock lock(rt.agreed_mutex);
    rt.agreed_elsewhere = text;
  }
  fail(kind, text, label.where);
}

void ProcessGroup::together(const std::function<void()>& body, Label label) const {
  std::string message;
  Kind kind = Kind::state;
  bool ok = false;
  try {
    body();
    ok = true;
  } catch (const Error& e) {
    message = e.what();
    kind = e.kind();
  } catch (const std::bad_alloc&) {
    message = "out of memory";
    kind = Kind::exhausted;
  } catch (const std::exception& e) {
    message = e.what();
  }
  agree(ok, message, kind, label);
}

Statistics ProcessGroup::statistics() const {
  Channel& channel = open_channel();
  auto& rt = detail::runtime();
  if (rt.device) rt.device->poll();
  return rt.engine().statistics(channel);
}

bool all_have_next(bool has_next, const ProcessGroup& group) {
  const ProcessGroup& all = group ? group : ProcessGroup::world();
  return all.all_reduce(std::int64_t{has_next ? 1 : 0}, ReduceOp::min, "all_have_next") == 1;
}

}  // namespace apex::dist
