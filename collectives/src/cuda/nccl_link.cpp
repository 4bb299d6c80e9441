// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "../collective.hpp"
#include "../runtime.hpp"
#include "apex/core/cuda.hpp"
#include "communicator.hpp"
#include "device_works.hpp"
#include "in_stream.hpp"

namespace apex::dist {
namespace detail {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u8:
    case DType::boolean: return ncclUint8;
  }
  throw_unsupported("collective", dtype);
}

ncclRedOp_t reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
  }
  fail(Kind::argument, "unknown reduction");
}

struct NcclChannel final : DeviceChannel {
  Communicator comm;
  std::optional<cuda::Stream> stream;  // the group's own communicator, from which others are split, has none
  Tail tail;
  Lane lane;
};

NcclChannel* nccl_of(const Channel& channel) { return static_cast<NcclChannel*>(channel.device.get()); }

/// A page-locked copy of the elements of a dense tensor.
class Staging {
 public:
  Staging(const Tensor& tensor, const Context& ctx)
      : device_(tensor),
        ctx_(ctx),
        host_(Tensor::from_storage(cuda::pinned_pool::storage(tensor.bytes()), tensor.dtype(), {tensor.numel()}, {1})) {
  }
  const Tensor& host() const { return host_; }
  void fetch() const { copy(host_.raw_data(), device_.raw_data(), cudaMemcpyDeviceToHost); }
  void put() const { copy(device_.raw_data(), host_.raw_data(), cudaMemcpyHostToDevice); }

 private:
  void copy(void* to, const void* from, cudaMemcpyKind kind) const {
    APEX_CHECK(cudaMemcpyAsync(to, from, device_.bytes(), kind, cuda::stream_of(ctx_)));
    cuda::synchronize(ctx_);
  }
  const Tensor device_;
  const Context ctx_;
  const Tensor host_;
};

/// The variables that prepare_nccl_environment decides.
std::string nccl_environment() {
  std::string text;
  for (const char* name : {"NCCL_NVLS_ENABLE", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_ALGO", "NCCL_PROTO"})
    if (const char* value = std::getenv(name)) text += concat(' ', name, '=', value);
  return text;
}

/// An entry in the watchdog's list while a collective is queued, which can block where NCCL connects first.
class Watch {
 public:
  Watch(Watchdog& watchdog, const Description& description, bool captured)
      : watchdog_(watchdog), id_(captured ? 0 : watchdog.watch(description)) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    if (id_ != 0) watchdog_.done(id_);
  }
  Watchdog::Id id() const noexcept { return id_; }
  Watchdog::Id release() noexcept { return std::exchange(id_, 0); }

 private:
  Watchdog& watchdog_;
  Watchdog::Id id_;
};

class NcclLink final : public DeviceLink {
 public:
  NcclLink(Runtime& rt, Device device, bool staged)
      : rt_(rt),
        device_(device),
        staged_(staged),
        chained_(!nccl_orders_communicators()),
        works_(rt.engine(), rt.watchdog, device) {}

  Device device() const override { return device_; }
  void connect(Group* group, Group* parent) override;
  Work all_reduce(const ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Label& label) override;
  Work broadcast(const ProcessGroup& group, const Tensor& tensor, int root, const Label& label) override;
  Work all_gather(const ProcessGroup& group, const Tensor& out, const Tensor& in, const Label& label) override;
  Work reduce_scatter(const ProcessGroup& group, const Tensor& out, const Tensor& in, ReduceOp op,
                      const Label& label) override;
  void watch(const Context& ctx, std::string_view label) override { works_.watch(ctx, label); }
  std::string trouble() override;
  void poll() noexcept override { works_.poll(); }
  void close() noexcept override;
  void abort() noexcept override;

 private:
  using Post = std::function<void(ncclComm_t, cudaStream_t)>;
  using Tensors = std::initializer_list<Tensor>;

  Work issue(const ProcessGroup& group, const char* name, const char* detail, const Block& block, int root,
             const Label& label, Tensors tensors, const Post& post);
  std::shared_ptr<DeviceWork> queue(Channel& channel, const Description& description, Tensors tensors,
                                    const Post& post);
  std::shared_ptr<DeviceWork> queue_in_stream(Channel& channel, const Description& description, std::int64_t bytes,
                                              Tensors tensors, const Post& post);
  Work copied(const ProcessGroup& group, const char* name, const Block& block, const Label& label, const Tensor& to,
              const Tensor& from);
  void refuse_capture(const char* name) const;

  Runtime& rt_;
  const Device device_;
  const bool staged_;
  const bool chained_;      // NCCL does not keep the kernels of several communicators in order: each waits for the last
  std::mutex issue_mutex_;  // the order of kernels must be the same on all ranks: one at a time
  Tail tail_;               // of all communicators
  std::mutex comms_mutex_;
  std::vector<ncclComm_t> comms_;  // those that carry tensors
  WorkList works_;
};

void NcclLink::connect(Group* group, Group* parent) {
  if (staged_) return;
  const Deadline limit(concat("connecting the GPUs of group ", group ? group->label : "split from " + parent->label),
                       std::max(rt_.options.timeout_s, kConnectSeconds));
  cuda::set_device(device_.index);
  Communicator own;
  if (parent == nullptr) {
    if (group->size == 1) return;
    if (group->rank == 0) {
      log_warning(concat("NCCL ", nccl_version(), " with", nccl_environment()));
      if (chained_)
        log_warning(
            "this NCCL does not keep the kernels of several communicators in order (2.26 does, unless "
            "NCCL_LAUNCH_ORDER_IMPLICIT=0): collectives on the GPU run one after the other");
    }
    own = Communicator::bootstrap(group->channels[kControl]->comm);
  } else {
    if (!parent->channels[kControl]->device) return;  // of one rank
    const bool several = group != nullptr && group->size > 1;
    own = nccl_of(*parent->channels[kControl])
              ->comm.split(several ? group->world_ranks.front() : -1, several ? group->rank : 0, false);
    if (!several) return;
  }
  for (int i = 0; i < kPurposes; ++i) {
    auto channel = std::make_unique<NcclChannel>();
    channel->comm = own.split(0, group->rank, true);
    channel->stream.emplace(device_, true);
    {
      const std::scoped_lock lock(comms_mutex_);
      comms_.push_back(channel->comm.get());
    }
    group->channels[i]->device = std::move(channel);
  }
  auto channel = std::make_unique<NcclChannel>();
  channel->comm = std::move(own);
  group->channels[kControl]->device = std::move(channel);
}

Work NcclLink::issue(const ProcessGroup& group, const char* name, const char* detail, const Block& block, int root,
                     const Label& label, Tensors tensors, const Post& post) {
  Channel& channel = channel_of(group);
  works_.hold_if_ending();
  auto operation = make_operation(channel, name, detail, block, root, label);
  if (channel.debug_comm != MPI_COMM_NULL && channel.size > 1) {
    operation->counted = false;
    dist::detail::issue(rt_, channel, std::move(operation)).wait();  // it only compares
    operation = make_operation(channel, name, detail, block, root, label);
  }
  rt_.engine().note_issue(channel, *operation);
  if (channel.size == 1 || block.count == 0) return {};
  operation->device = group.is_in_stream()
                          ? queue_in_stream(channel, operation->description, operation->bytes, tensors, post)
                          : queue(channel, operation->description, tensors, post);
  return Work(std::move(operation));
}

std::shared_ptr<DeviceWork> NcclLink::queue(Channel& channel, const Description& description, Tensors tensors,
                                            const Post& post) {
  NcclChannel& own = *nccl_of(channel);
  const Context current = Context::current(device_), ctx = own.stream->context();
  const auto capture = capture_of(current);
  const auto work = std::make_shared<StreamWork>(works_, &channel, capture != 0);
  for (const Tensor& t : tensors) work->storages.push_back(t.storage());
  Watch watch(rt_.watchdog, description, capture != 0);
  {
    const std::scoped_lock lock(issue_mutex_);
    Tail& tail = chained_ ? tail_ : own.tail;
    cuda::order(current, ctx);
    tail.order(works_, ctx, current, capture);
    if (capture == 0) work->start.record(ctx);
    post(own.comm.get(), cuda::stream_of(ctx));
    work->end.record(ctx);
    tail.set(ctx, capture, nullptr);
  }
  if (capture == 0) works_.add(work, ctx, watch.release());
  return work;
}

std::shared_ptr<DeviceWork> NcclLink::queue_in_stream(Channel& channel, const Description& description,
                                                      std::int64_t bytes, Tensors tensors, const Post& post) {
  NcclChannel& own = *nccl_of(channel);
  const Context ctx = Context::current(device_);
  const auto capture = capture_of(ctx);
  for (const Tensor& t : tensors) cuda::record_use(t.storage(), ctx);  // nothing else keeps them
  Watch watch(rt_.watchdog, description, capture != 0);
  const std::scoped_lock lock(issue_mutex_);
  Tail& tail = chained_ ? tail_ : own.tail;
  tail.order(works_, ctx, ctx, capture);
  const auto enqueue = [&] { post(own.comm.get(), cuda::stream_of(ctx)); };
  if (capture == 0) {
    auto work = works_.post_in_stream(channel, own.lane, ctx, bytes, watch.id(), enqueue, tail);
    watch.release();
    return work;
  }
  enqueue();
  tail.set(ctx, capture, nullptr);
  return std::make_shared<InStreamWork>(works_, ctx, nullptr, false);
}

/// A collective of one rank.
Work NcclLink::copied(const ProcessGroup& group, const char* name, const Block& block, const Label& label,
                      const Tensor& to, const Tensor& from) {
  const Context ctx = Context::current(device_);
  if (block.count > 0 && to.raw_data() != from.raw_data())
    APEX_CHECK(
        cudaMemcpyAsync(to.raw_data(), from.raw_data(), from.bytes(), cudaMemcpyDeviceToDevice, cuda::stream_of(ctx)));
  return issue(group, name, "", block, -1, label, {}, {});
}

void NcclLink::refuse_capture(const char* name) const {
  if (cuda::capturing(Context::current(device_)))
    fail(Kind::unsupported,
         concat(name, ": ranks that share a GPU communicate by the host, which a graph cannot hold"));
}

Work NcclLink::all_reduce(const ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Label& label) {
  Channel& channel = channel_of(group);
  if (staged_ && channel.size > 1) {
    refuse_capture("all_reduce");
    const Staging staging(tensor, Context::current(device_));
    staging.fetch();
    const Work work = group.all_reduce(staging.host(), op, label);
    work.wait();
    staging.put();
    return work;
  }
  const Block block{tensor.raw_data(), tensor.dtype(), tensor.numel()};
  return issue(group, "all_reduce", to_string(op), block, -1, label, {tensor},
               [&](ncclComm_t comm, cudaStream_t stream) {
                 APEX_CHECK(ncclAllReduce(block.data, block.data, static_cast<std::size_t>(block.count),
                                          type_of(block.dtype), reduction_of(op), comm, stream));
               });
}

Work NcclLink::broadcast(const ProcessGroup& group, const Tensor& tensor, int root, const Label& label) {
  Channel& channel = channel_of(group);
  if (staged_ && channel.size > 1) {
    refuse_capture("broadcast");
    const Staging staging(tensor, Context::current(device_));
    staging.fetch();
    const Work work = group.broadcast(staging.host(), root, label);
    work.wait();
    staging.put();
    return work;
  }
  const Block block{tensor.raw_data(), tensor.dtype(), tensor.numel()};
  return issue(group, "broadcast", "", block, root, label, {tensor}, [&](ncclComm_t comm, cudaStream_t stream) {
    APEX_CHECK(ncclBroadcast(block.data, block.data, static_cast<std::size_t>(block.count), type_of(block.dtype), root,
                             comm, stream));
  });
}

Work NcclLink::all_gather(const ProcessGroup& group, const Tensor& out, const Tensor& in, const Label& label) {
  Channel& channel = channel_of(group);
  const Block block{in.raw_data(), in.dtype(), in.numel()};
  if (channel.size == 1) return copied(group, "all_gather", block, label, out, in);
  if (staged_) {
    refuse_capture("all_gather");
    const Context ctx = Context::current(device_);
    const Staging from(in, ctx), to(out, ctx);
    from.fetch();
    const Work work = group.all_gather(to.host(), from.host(), label);
    work.wait();
    to.put();
    return work;
  }
  return issue(group, "all_gather", "", block, -1, label, {out, in}, [&](ncclComm_t comm, cudaStream_t stream) {
    APEX_CHECK(ncclAllGather(block.data, out.raw_data(), static_cast<std::size_t>(block.count), type_of(block.dtype),
                             comm, stream));
  });
}

Work NcclLink::reduce_scatter(const ProcessGroup& group, const Tensor& out, const Tensor& in, ReduceOp op,
                              const Label& label) {
  Channel& channel = channel_of(group);
  const Block block{out.raw_data(), out.dtype(), out.numel()};
  if (channel.size == 1) return copied(group, "reduce_scatter", block, label, out, in);
  if (staged_) {
    refuse_capture("reduce_scatter");
    const Context ctx = Context::current(device_);
    const Staging from(in, ctx), to(out, ctx);
    from.fetch();
    const Work work = group.reduce_scatter(to.host(), from.host(), op, label);
    work.wait();
    to.put();
    return work;
  }
  return issue(group, "reduce_scatter", to_string(op), block, -1, label, {out, in},
               [&](ncclComm_t comm, cudaStream_t stream) {
                 APEX_CHECK(ncclReduceScatter(in.raw_data(), block.data, static_cast<std::size_t>(block.count),
                                              type_of(block.dtype), reduction_of(op), comm, stream));
               });
}

/// What a communicator reports of itself. NCCL does not notice every dead peer: the time limit does.
std::string NcclLink::trouble() {
  if (works_.ending()) return {};
  const std::scoped_lock lock(comms_mutex_);
  for (const ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) continue;
    if (state != ncclSuccess && state != ncclInProgress)
      return concat("a collective on the GPU failed: ", StatusTraits<ncclResult_t>::text(state));
  }
  return {};
}

void NcclLink::close() noexcept {
  works_.drain();
  works_.stop();
  {
    const std::scoped_lock lock(comms_mutex_);
    comms_.clear();
  }
  const std::scoped_lock lock(rt_.groups_mutex);
  for (const auto& group : rt_.groups)
    for (const auto& channel : group->channels) channel->device.reset();
}

void NcclLink::abort() noexcept {
  works_.begin_end();
  try {
    std::vector<ncclComm_t> comms;
    {
      const std::scoped_lock lock(comms_mutex_);
      comms.swap(comms_);  // nobody may ask them for errors any more
    }
    // All at once: one that waits for another could hang. Who hangs is left behind.
    const auto left = std::make_shared<std::atomic<std::size_t>>(comms.size());
    for (const ncclComm_t comm : comms)
      quiet_thread([comm, left] {
        ncclCommAbort(comm);
        --*left;
      }).detach();
    for (int i = 0; i < 100 && *left > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } catch (const std::exception&) {
    // No threads to be had: the end of the process does it.
  }
}

}  // namespace

std::unique_ptr<DeviceLink> make_device_link(Runtime& rt, Device device, bool staged) {
  cuda::set_device(device.index);
  return std::make_unique<NcclLink>(rt, device, staged);
}

}  // namespace detail

ncclComm_t nccl_comm(const ProcessGroup& group) {
  const auto* own = detail::nccl_of(detail::channel_of(group));
  return own == nullptr ? nullptr : own->comm.get();
}

Context nccl_stream(const ProcessGroup& group) {
  const auto* own = detail::nccl_of(detail::channel_of(group));
  if (own == nullptr) fail(Kind::state, concat("nccl_stream: group ", group.label(), " has no NCCL communicator"));
  return own->stream->context();
}

}  // namespace apex::dist
