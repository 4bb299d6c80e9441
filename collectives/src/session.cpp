// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/collectives/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "apex/collectives/mpi.hpp"
#include "apex/core/standard_streams.hpp"
#include "main_guard.hpp"
#include "runtime.hpp"

namespace apex::dist {
namespace detail {
namespace {

std::atomic<Runtime*> current{nullptr};
std::atomic<bool> session_exists{false};

}  // namespace

Runtime* runtime_or_null() noexcept { return current.load(std::memory_order_acquire); }

Runtime& runtime() {
  Runtime* rt = runtime_or_null();
  if (rt == nullptr) fail(Kind::state, "no apex::dist::Session exists; make one at the start of main");
  return *rt;
}

void set_runtime(Runtime* rt) noexcept { current.store(rt, std::memory_order_release); }

}  // namespace detail

namespace {

void check_options(const SessionOptions& o) {
  if (!(o.timeout_s > 0) || !std::isfinite(o.timeout_s))
    fail(Kind::argument, concat("Session: timeout_s ", o.timeout_s, " is not a positive number of seconds"));
  if (o.expect_ranks < 0) fail(Kind::argument, concat("Session: expect_ranks ", o.expect_ranks, " is negative"));
  if (o.max_count < 1 || o.max_count > INT_MAX)
    fail(Kind::argument, concat("Session: max_count ", o.max_count, " is not in 1..", INT_MAX));
  if (o.device_index && (o.device == DeviceKind::cpu || *o.device_index < 0))
    fail(Kind::argument, concat("Session: device_index ", *o.device_index, " is no CUDA device"));
  if (o.device == DeviceKind::cuda && !has_cuda) throw_not_built("Session", {DeviceKind::cuda, 0});
}

SessionOptions with_environment(SessionOptions options) {
  const char* debug = process_environment("APEX_DIST_DEBUG");
  if (debug != nullptr && *debug != '\0' && std::strcmp(debug, "0") != 0) options.debug = true;
  return options;
}

std::string host_name() {
  char name[256] = "unknown host";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

Session::Session(int& argc, char**& argv, const SessionOptions& options) : options_(with_environment(options)) {
  start(&argc, &argv);
}

Session::Session(const SessionOptions& options) : options_(with_environment(options)) { start(nullptr, nullptr); }

void Session::start(int* argc, char*** argv) {
  exceptions_at_start_ = std::uncaught_exceptions();
  fill_standard_streams();
  check_options(options_);
  if (const auto problem = launcher_problem_before_mpi()) fail(Kind::data, *problem);
  int finalized = 0, initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized) fail(Kind::state, "Session: MPI was already finalised; a process has one Session in its life");
  if (detail::session_exists.exchange(true)) fail(Kind::state, "Session: another Session exists; a process has one");
  detail::set_runtime(new detail::Runtime(options_, host_name()));
#ifdef APEX_HAS_CUDA
  if (options_.device != DeviceKind::cpu && detail::visible_devices() > 0)
    detail::prepare_nccl_environment(options_.deterministic);
#endif
  try {
    MPI_Initialized(&initialized);
    if (initialized) {
      APEX_CHECK_MPI(MPI_Query_thread(&thread_level_));
    } else {
      const Deadline limit("starting MPI");
      APEX_CHECK_MPI(MPI_Init_thread(argc, argv, options_.thread_level, &thread_level_));
      owns_mpi_ = true;
    }
    make_world();
  } catch (...) {
    int size = 1;
    if (owns_mpi_) MPI_Comm_size(MPI_COMM_WORLD, &size);
    finish(size > 1);
    throw;
  }
}

void Session::make_world() {
  auto& rt = detail::runtime();
  if (owns_mpi_) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  APEX_CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  APEX_CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  set_log_rank(rank_);
  detail::install_terminate_handler();
  if (const auto problem = launcher_problem(size_, options_.expect_ranks)) {
    if (rank_ != 0) rt.agreed_elsewhere = *problem;  // all ranks see the same: one line is enough
    fail(Kind::data, *problem);
  }
  const bool threaded = thread_level_ == MPI_THREAD_MULTIPLE;
  if (!threaded && rank_ == 0)
    log_warning("MPI gives no MPI_THREAD_MULTIPLE: collectives only move while somebody waits, nothing overlaps");
  MPI_Comm comm;
  {
    const Deadline limit("making the world's communicators");
    // Comparing collectives must be on everywhere or nowhere, and the environment may differ between hosts.
    int flags[3] = {options_.debug ? 1 : 0, options_.deterministic ? 1 : 0, options_.dismiss ? 1 : 0};
    APEX_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, flags, 3, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    options_.debug = rt.options.debug = flags[0] != 0;
    options_.deterministic = rt.options.deterministic = flags[1] != 0;
    options_.dismiss = rt.options.dismiss = flags[2] != 0;
    if (threaded && size_ > 1) {
      APEX_CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &rt.watchdog_comm));
      APEX_CHECK_MPI(MPI_Comm_set_errhandler(rt.watchdog_comm, MPI_ERRORS_RETURN));
    }
    APEX_CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  }
  rt.types.create();
  rt.engine_holder = std::make_unique<detail::Engine>(rt.watchdog, threaded);
  rt.watchdog.connect(rt.watchdog_comm, rank_, size_, rt.engine().mutex());
  world_ = {detail::make_group(rt, comm, "world"), Purpose::user};

  {
    MPI_Comm node;
    const Deadline limit("finding the ranks of this node");
    APEX_CHECK_MPI(MPI_Comm_split_type(world_.mpi_comm(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node));
    APEX_CHECK_MPI(MPI_Comm_rank(node, &local_rank_));
    APEX_CHECK_MPI(MPI_Comm_size(node, &local_size_));
    APEX_CHECK_MPI(MPI_Comm_free(&node));
  }
  if (!options_.dismiss) choose_device();
}

void Session::choose_device() {
#ifdef APEX_HAS_CUDA
  auto& rt = detail::runtime();
  const Deadline limit("finding the ranks' GPUs", std::max(options_.timeout_s, detail::kConnectSeconds));
  detail::DeviceFacts own;
  own.wanted = options_.device ? static_cast<int>(*options_.device) : options_.device_index ? 1 : -1;
  own.share = options_.allow_shared_device ? 1 : 0;
  std::snprintf(own.host, sizeof own.host, "%s", host_name().c_str());
  if (own.wanted != static_cast<int>(DeviceKind::cpu)) {
    own.visible = detail::visible_devices();
    own.index = options_.device_index.value_or(own.visible > 0 ? local_rank_ % own.visible : -1);
    if (own.index < own.visible && own.index >= 0) detail::describe_device(own);
  }
  std::vector<detail::DeviceFacts> all(static_cast<std::size_t>(size_));
  APEX_CHECK_MPI(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, world_.mpi_comm()));
  bool cuda = false;
  Kind kind = Kind::data;
  const std::string problem = detail::device_problem(all, cuda, shares_devices_, kind);
  if (!problem.empty()) {
    if (rank_ != 0) rt.agreed_elsewhere = problem;  // all ranks see the same: one line is enough
    fail(kind, problem);
  }
  if (!cuda) return;
  device_ = {DeviceKind::cuda, own.index};
  if (shares_devices_ && rank_ == 0)
    log_warning("ranks share a GPU: CUDA tensors travel through host memory, each collective waits for the device");
  rt.device = detail::make_device_link(rt, device_, shares_devices_);
  rt.watchdog.set_before_end([link = rt.device.get()] { link->abort(); });
  rt.watchdog.set_check([link = rt.device.get()] { return link->trouble(); });
  rt.device->connect(world_.group_.get(), nullptr);
#endif
}

Session::~Session() { finish(size_ > 1 && std::uncaught_exceptions() > exceptions_at_start_); }

void Session::finish(bool peers_may_wait) noexcept {
  detail::Runtime* rt = detail::runtime_or_null();
  if (rt == nullptr) return;
  if (peers_may_wait) {
    // No collective call may follow. What is in flight still refers to the runtime, so it stays, and the terminate
    // handler with it; the process ends now.
    const std::scoped_lock lock(rt->groups_mutex);
    for (const auto& group : rt->groups) group->open = false;
    return;
  }
  if (rt->engine_holder) rt->engine().drain();
  if (rt->device) {
    std::size_t groups = 0;
    {
      const std::scoped_lock lock(rt->groups_mutex);
      groups = rt->groups.size();
    }
    // NCCL takes about half a second for the communicators of a group.
    const Deadline limit("ending the communication between GPUs", rt->options.timeout_s + static_cast<double>(groups));
    rt->device->close();
    rt->watchdog.set_check({});
    rt->watchdog.set_before_end({});
  }
  rt->watchdog.disconnect();
  rt->device.reset();
  rt->engine_holder.reset();
  {
    const Deadline limit("ending the session");
    detail::close_groups(*rt);
    if (rt->watchdog_comm != MPI_COMM_NULL) MPI_Comm_free(&rt->watchdog_comm);
    rt->types.release();
    if (owns_mpi_) MPI_Finalize();
  }
  detail::restore_terminate_handler();
  detail::set_runtime(nullptr);
  delete rt;
  detail::session_exists = false;
}

ProcessGroup Session::world() const { return world_; }

namespace {

detail::Engine& polled_engine() {
  auto& rt = detail::runtime();
  if (rt.device) rt.device->poll();
  return rt.engine();
}

}  // namespace

Statistics Session::statistics() const { return polled_engine().statistics(); }
Statistics Session::statistics(Purpose purpose) const { return polled_engine().statistics(purpose); }

void watch(const Context& ctx, std::string_view label) {
  detail::Runtime* rt = detail::runtime_or_null();
  if (rt != nullptr && rt->device && ctx.device == rt->device->device()) rt->device->watch(ctx, label);
}

Deadline::Deadline(std::string_view what, double seconds) {
  if (detail::Runtime* rt = detail::runtime_or_null()) id_ = rt->watchdog.watch(std::string(what), seconds);
}

Deadline::~Deadline() {
  detail::Runtime* rt = detail::runtime_or_null();
  if (id_ != 0 && rt != nullptr) rt->watchdog.done(id_);
}

}  // namespace apex::dist
