// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "collectives.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "apex/collectives/process_group.hpp"
#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "measure.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/collectives/nccl.hpp"
#include "apex/core/cuda.hpp"
#endif

namespace bench {
namespace {

using apex::Tensor;
using Clock = std::chrono::steady_clock;

/// Microseconds of one call of each kind, `calls` of them queued one after the other; the slowest rank's, median of
/// five. The kinds take turns, so that what drifts meets them alike. 0 for an empty one.
std::vector<double> times_us(const apex::dist::Session& session, int calls,
                             const std::vector<std::function<void()>>& kinds) {
  const auto block = [&](const std::function<void()>& call, int n) {
    synchronize(session.device());
    session.world().barrier();
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) call();
    synchronize(session.device());
    return 1e6 * std::chrono::duration<double>(Clock::now() - start).count() / n;
  };
  std::vector<std::vector<double>> us(kinds.size());
  for (int round = -1; round < 5; ++round)
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (!kinds[k]) continue;
      const double mine = block(kinds[k], round < 0 ? 3 : calls);  // the first is not counted
      if (round >= 0) us[k].push_back(session.world().all_reduce(mine, apex::dist::ReduceOp::max));
    }
  std::vector<double> medians;
  for (auto& list : us) medians.push_back(list.empty() ? 0 : median(std::move(list)));
  return medians;
}

/// The bare loop: the same library call on the same communicator (and stream), nothing of ours around it.
std::function<void()> raw_all_reduce(const apex::dist::ProcessGroup& group, const Tensor& t) {
#ifdef APEX_HAS_CUDA
  if (t.device().is_cuda()) {
    const ncclComm_t comm = apex::dist::nccl_comm(group);
    if (comm == nullptr) return {};
    const cudaStream_t stream = apex::cuda::stream_of(apex::dist::nccl_stream(group));
    return [comm, stream, data = t.raw_data(), n = static_cast<std::size_t>(t.numel())] {
      APEX_CHECK(ncclAllReduce(data, data, n, ncclFloat32, ncclSum, comm, stream));
    };
  }
#endif
  return [comm = group.mpi_comm(), data = t.raw_data(), n = static_cast<int>(t.numel())] {
    if (MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, comm) != MPI_SUCCESS)
      apex::fail(apex::Kind::communication, "MPI_Allreduce failed");
  };
}

/// After one all-reduce of rank + 1 everywhere each element is 1 + 2 + ... + size.
bool sums_right(const apex::dist::ProcessGroup& group, const Tensor& t) {
  apex::kernels::fill(t.context(), t.view(), group.rank() + 1);
  group.all_reduce(t).wait();
  const double want = group.size() * (group.size() + 1) / 2.0;
  bool right = true;
  for (const std::int64_t i : {std::int64_t{0}, t.numel() / 2, t.numel() - 1})
    right = right && values_of(apex::views::narrow(t, 0, i, 1))[0] == want;
  return group.all_reduce(std::int64_t{right}, apex::dist::ReduceOp::min) == 1;
}

}  // namespace

void run_collectives(const apex::dist::Session& session, const CollectivesOptions& options) {
  const auto group = session.world(), in_stream = group.in_stream();
  const bool talks = session.rank() == 0;
  if (session.size() < 2)
    apex::fail(apex::Kind::argument, "collectives take several ranks: mpirun -n 2 apex_bench collectives");
  if (talks) {
    std::string transport = "MPI";
#ifdef APEX_HAS_CUDA
    if (session.device().is_cuda()) transport = apex::concat("NCCL ", apex::dist::nccl_version());
#endif
    std::printf("apex_bench collectives on %d ranks, %s, %s\n", session.size(), device_name(session.device()).c_str(),
                transport.c_str());
    std::printf("%-16s %12s %12s %12s %8s %12s %8s\n", "all-reduce f32", "us", "bus GB/s", "bare us", "ratio",
                "async us", "ratio");
  }
  nlohmann::json rows = nlohmann::json::array();
  bool all_right = true;
  // The data is zeros while times are taken: sums of sums would overflow.
  for (std::int64_t bytes = 1024; bytes <= options.most_bytes; bytes *= 4) {
    const Tensor t = apex::empty({bytes / 4}, apex::DType::f32, session.device());
    apex::kernels::fill(t.context(), t.view(), 0);
    const int calls = bytes <= (1 << 20) ? options.calls : std::max(10, options.calls / 5);
    const auto us = times_us(
        session, calls,
        {[&] { in_stream.all_reduce(t).wait(); }, raw_all_reduce(group, t), [&] { group.all_reduce(t).wait(); }});
    const double ours = us[0], bare = us[1], async = us[2];
    const bool right = sums_right(group, t) && sums_right(in_stream, t);
    all_right = all_right && right;
    const double bus = 2.0 * (session.size() - 1) / session.size() * static_cast<double>(bytes) / ours * 1e-3;
    if (talks) {
      const std::string size =
          bytes >= (1 << 20) ? apex::concat(bytes >> 20, " MiB") : apex::concat(bytes >> 10, " KiB");
      std::printf("%-16s %12.2f %12.2f %12.2f %8.3f %12.2f %8.3f%s\n", size.c_str(), ours, bus, bare, bare / ours,
                  async, bare / async, right ? "" : "  WRONG");
      std::fflush(stdout);
    }
    rows.push_back({{"bytes", bytes},
                    {"us", ours},
                    {"bus_GB_per_s", bus},
                    {"bare_us", bare},
                    {"async_us", async},
                    {"right", right}});
  }
  if (talks && !options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"command", "collectives"},
                           {"ranks", session.size()},
                           {"device", device_name(session.device())},
                           {"rows", rows}}
                .dump(1)
         << '\n';
    if (!file.flush()) apex::fail(apex::Kind::data, apex::concat("cannot write ", options.json));
  }
  if (!all_right) apex::fail(apex::Kind::numerical, "an all-reduce gave a wrong sum: its time is void");
}

}  // namespace bench
