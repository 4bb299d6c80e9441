// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apex/collectives/session.hpp"
#include "device_link.hpp"
#include "engine.hpp"
#include "mpi_types.hpp"
#include "watchdog.hpp"

namespace apex::dist::detail {

/// Channels of a group beyond its purposes: what the library itself says (splitting, agreeing).
inline constexpr int kControl = kPurposes;
inline constexpr int kChannels = kPurposes + 1;

struct Group {
  std::string label;
  int rank = 0, size = 1;
  std::vector<int> world_ranks;
  std::unique_ptr<Channel> channels[kChannels];
  std::atomic<bool> open{true};
};

/// What a Session holds up. Exists exactly as long as one does.
struct Runtime {
  Runtime(const SessionOptions& session_options, std::string host)
      : options(session_options), watchdog(session_options.timeout_s, std::move(host)) {}

  SessionOptions options;
  Watchdog watchdog;
  MpiTypes types;
  std::unique_ptr<Engine> engine_holder;
  std::unique_ptr<DeviceLink> device;  // only where the Session runs on CUDA
  MPI_Comm watchdog_comm = MPI_COMM_NULL;
  std::mutex groups_mutex;
  std::vector<std::shared_ptr<Group>> groups;  // in the order they were made
  std::mutex agreed_mutex;
  std::string agreed_elsewhere;  // the message of an agreed error that another rank prints

  Engine& engine() { return *engine_holder; }
};

/// @throws Kind::state without a Session
Runtime& runtime();
Runtime* runtime_or_null() noexcept;
void set_runtime(Runtime* runtime) noexcept;

/// Makes the communicators of a group. Takes `comm` over. Collective over comm.
std::shared_ptr<Group> make_group(Runtime& rt, MPI_Comm comm, std::string label);
/// The channel that a group talks on. @throws Kind::state after the Session's end
Channel& channel_of(const ProcessGroup& group);
/// Frees the communicators. Collective.
void close_groups(Runtime& rt);

}  // namespace apex::dist::detail
