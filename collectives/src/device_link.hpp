// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "apex/collectives/process_group.hpp"
#include "apex/core/context.hpp"
#include "apex/core/tensor.hpp"

// What the rest of collectives knows of CUDA and NCCL: the interface that src/cuda implements.

namespace apex::dist::detail {

struct Group;
struct Runtime;

/// Least limit for connecting GPUs: on a host where nothing is loaded yet, contexts and libraries take their time.
inline constexpr double kConnectSeconds = 180;

/// What a channel needs to carry CUDA tensors: its communicator and its stream.
class DeviceChannel {
 public:
  virtual ~DeviceChannel() = default;
};

/// A collective on a device: the calls of Work.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual void wait() = 0;
  virtual bool wait_host(double seconds) = 0;
  virtual std::optional<Work::Clock::time_point> finished() = 0;
  virtual std::optional<double> exposed_s() = 0;
};

/// All that a Session does on its CUDA device.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;

  virtual Device device() const = 0;
  /// Makes the communicators of `group`, which was split off from `parent` (null: the world). All ranks of the parent
  /// call it, those outside every new group with a null group. Collective.
  virtual void connect(Group* group, Group* parent) = 0;

  virtual Work all_reduce(const ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Label& label) = 0;
  virtual Work broadcast(const ProcessGroup& group, const Tensor& tensor, int root, const Label& label) = 0;
  virtual Work all_gather(const ProcessGroup& group, const Tensor& out, const Tensor& in, const Label& label) = 0;
  virtual Work reduce_scatter(const ProcessGroup& group, const Tensor& out, const Tensor& in, ReduceOp op,
                              const Label& label) = 0;
  virtual void watch(const Context& ctx, std::string_view label) = 0;

  /// What the transport reports of itself for which the job has to end; empty: nothing. Called by the watchdog.
  virtual std::string trouble() = 0;
  /// Looks which works the device has finished. Never waits.
  virtual void poll() noexcept = 0;
  /// Waits until nothing is in flight, then ends the communicators. Collective.
  virtual void close() noexcept = 0;
  /// Makes every communicator give up, within a second or two; for the end of a job that failed.
  virtual void abort() noexcept = 0;
};

/// A rank's GPU, as all ranks of the job see it.
struct DeviceFacts {
  unsigned char uuid[16] = {};
  int visible = 0;  ///< devices that the rank sees
  int index = -1;   ///< the one it takes
  int wanted = -1;  ///< what it was asked for: -1 nothing, else a DeviceKind
  int share = 0;    ///< whether it may share
  char name[128] = {};
  char host[64] = {};
};

/// What stands in the way of running on these devices, by rank; empty: nothing. One line.
/// @param cuda    whether the job runs on CUDA
/// @param shared  whether ranks share a GPU
/// @param kind    of the problem: unsupported when a device that was asked for is not there, else data
std::string device_problem(std::span<const DeviceFacts> ranks, bool& cuda, bool& shared, Kind& kind);

#ifdef APEX_HAS_CUDA
int visible_devices() noexcept;
/// Fills in what the driver says of device facts.index.
void describe_device(DeviceFacts& facts);
/// Variables that NCCL reads: what apex needs, and what makes sums repeat. Before MPI starts: NCCL reads them once.
void prepare_nccl_environment(bool deterministic);
/// Makes `device` the thread's. @param staged  ranks share a GPU: tensors travel through host memory
std::unique_ptr<DeviceLink> make_device_link(Runtime& rt, Device device, bool staged);
#endif

}  // namespace apex::dist::detail
