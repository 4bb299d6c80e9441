// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Goes wrong on demand: fault_probe SCENARIO [TIMEOUT_S]. Started under mpiexec by fault_test.cpp. Rank 1 is the one
// that misbehaves. "ready PID" lines tell the test whom to signal. APEX_TEST_DEVICE=cuda runs it on GPUs.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "apex/collectives/session.hpp"
#include "support/session_device.hpp"

namespace {

using namespace apex;
using namespace apex::dist;

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

Tensor make_tensor(Device device) {
  const Tensor t = empty({5}, DType::f32, device);
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    APEX_CHECK(cudaMemsetAsync(t.raw_data(), 0, t.bytes(), cuda::stream_of(t.context())));
    return t;
  }
#endif
  for (int i = 0; i < 5; ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}

/// Waits on the host, on a GPU too.
void finish(const Work& work) {
  work.wait();
  while (!work.wait_host(1)) {}
}

#ifdef APEX_HAS_CUDA
/// Launches a captured all-reduce again and again, some steps ahead of the device, until somebody is stopped or killed.
int run_graph(const ProcessGroup& world, const Tensor& t) {
  const Context ctx = t.context();
  cudaGraph_t graph{};
  cudaGraphExec_t step{};
  APEX_CHECK(cudaStreamBeginCapture(cuda::stream_of(ctx), cudaStreamCaptureModeThreadLocal));
  world.all_reduce(t, ReduceOp::max, "in the graph").wait();
  APEX_CHECK(cudaStreamEndCapture(cuda::stream_of(ctx), &graph));
  APEX_CHECK(cudaGraphInstantiate(&step, graph, 0));
  for (int i = 1; i < 100000; ++i) {
    APEX_CHECK(cudaGraphLaunch(step, cuda::stream_of(ctx)));
    watch(ctx, concat("graph step ", i));
    if (i % 4 == 0) cuda::synchronize(ctx);
    sleep_seconds(0.005);
  }
  return 0;
}
#endif

int scenario(const std::string& name, Session& session) {
  const auto world = session.world();
  const bool odd = session.rank() == 1;
  const Tensor t = make_tensor(session.device());
  for (int i = 0; i < 3; ++i) finish(world.all_reduce(t, ReduceOp::sum, concat("warm-up ", i)));
  std::printf("ready %d %d\n", session.rank(), static_cast<int>(::getpid()));
  std::fflush(stdout);

  if (name == "ok" || name == "shared_gpu") return 0;
#ifdef APEX_HAS_CUDA
  if (name == "graph") return run_graph(world, t);
#endif
  if (name == "skip") {  // rank 1 leaves out one collective and goes on to the next
    if (!odd) finish(world.all_reduce(t, ReduceOp::sum, "layer4.bn1"));
    finish(world.all_reduce(t, ReduceOp::sum, "layer5.bn1"));
    finish(world.all_reduce(t, ReduceOp::sum, "layer6.bn1"));
    return 0;
  }
  if (name == "swap") {
    const auto first = [&] { finish(world.all_reduce(t, ReduceOp::sum, "first")); };
    const auto second = [&] { finish(world.broadcast(t, 0, "second")); };
    odd ? (second(), first()) : (first(), second());
    return 0;
  }
  if (name == "barrier") {
    if (odd) sleep_seconds(60);
    world.barrier("before evaluation");
    return 0;
  }
  if (name == "split") {
    if (odd) sleep_seconds(60);
    (void)world.split(0);
    return 0;
  }
  if (name == "finalise") {  // rank 1 never ends its session
    if (odd) sleep_seconds(60);
    return 0;
  }
  if (name == "async") {  // nobody waits for it
    if (!odd) (void)world.all_reduce(t, ReduceOp::sum, "nobody waits");
    sleep_seconds(60);
    return 0;
  }
  if (name == "deadline") {
    const Deadline guard("writing checkpoint step 100", 1.0);
    sleep_seconds(odd ? 60 : 0);
    return 0;
  }
  if (name == "many") {  // more than the report holds, then a skipped one
    for (int i = 0; i < 100; ++i) finish(world.all_reduce(t, ReduceOp::max, concat("step ", i)));
    if (!odd) finish(world.all_reduce(t, ReduceOp::sum, "the hundred and first"));
    sleep_seconds(60);
    return 0;
  }
  if (name == "loop") {  // until somebody is stopped or killed from outside
    for (int i = 0; i < 100000; ++i) {
      finish(world.all_reduce(t, ReduceOp::max, "loop"));
      sleep_seconds(0.005);
    }
    return 0;
  }
  if (name == "in_stream") {  // as "loop", a few collectives ahead of the device
    const auto here = world.in_stream();
    for (int i = 0; i < 100000; ++i) {
      const Work work = here.all_reduce(t, ReduceOp::max, "in stream");
      work.wait();
      if (i % 10 == 9) finish(work);
      sleep_seconds(0.005);
    }
    return 0;
  }
  if (name == "long") {  // long enough to be suspended as a whole for longer than the limit
    for (int i = 0; i < 20; ++i) {
      finish(world.all_reduce(t, ReduceOp::max, "long"));
      sleep_seconds(0.05);
    }
    return 0;
  }
  if (name == "throw") {
    if (odd) fail(Kind::data, "cannot read /data/train: no such folder");
    world.barrier("waits for rank 1");
    return 0;
  }
  if (name == "throw_foreign") {
    if (odd) throw std::logic_error("a foreign exception");
    world.barrier("waits for rank 1");
    return 0;
  }
  if (name == "agree") {
    world.agree(!odd, "the pack is damaged", Kind::damaged);
    return 0;
  }
  if (name == "thread") {
    std::thread([&] {
      if (odd) fail(Kind::numerical, "loss is NaN");
    }).join();
    world.barrier("waits for rank 1");
    return 0;
  }
  fail(Kind::argument, concat("fault_probe: unknown scenario ", name));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  SessionOptions options{.timeout_s = argc > 2 ? std::atof(argv[2]) : 5.0};
  if (name == "expect") options.expect_ranks = 5;
  options.device = name == "cuda" ? DeviceKind::cuda : test::session_device();
  if (name == "same_gpu" || name == "shared_gpu") options.device_index = 0;
  if (name == "shared_gpu") options.allow_shared_device = true;
  if (name == "far_gpu") options.device_index = 63;
  if (name == "adopt") {  // somebody else's MPI is used and left running
    MPI_Init(&argc, &argv);
    {
      Session session(argc, argv, options);
      session.world().barrier();
    }
    int finalized = 1, size = 0;
    MPI_Finalized(&finalized);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Finalize();
    return finalized == 0 && size > 0 ? 0 : 9;
  }
  if (name == "late_handles") {  // handles outlive the session
    ProcessGroup world;
    Work work;
    {
      Session session(argc, argv, options);
      world = session.world().dup("late");
      work = world.all_reduce(from_values<float>({1}, {1}));
    }
    work.wait();
    const ProcessGroup copy = world;
    try {
      copy.barrier();
    } catch (const Error& e) {
      return e.kind() == Kind::state ? 0 : 9;
    }
    return 9;
  }
  if (name == "uncaught") {  // no run_main: the terminate handler does it
    Session session(argc, argv, options);
    if (session.rank() == 1) fail(Kind::damaged, "uncaught on purpose");
    session.world().barrier();
    return 0;
  }
  return run_main([&] {
    Session session(argc, argv, options);
    return scenario(name, session);
  });
}
