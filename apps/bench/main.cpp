// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_bench: timings, beside PyTorch's where python has torch.
#include <omp.h>

#include <iostream>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#include "apex/train/option_set.hpp"
#include "apex/train/runtime.hpp"
#include "collectives.hpp"
#include "ops.hpp"
#include "optim.hpp"
#include "step.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace {

using apex::train::OptionSet;
using apex::train::UsageError;

constexpr const char* kUsage = R"(usage: apex_bench WHAT [OPTIONS]; apex_bench WHAT --help lists them
  ops          kernels: memory-bound ones, batch norm, losses, matrix products, the convolutions of ResNet-50
  optim        optimizer steps over the tensors of ResNet-50 and BERT-large; under mpirun -n 2 or more,
               DistributedFusedAdam beside DistributedDataParallel with FusedAdam
  collectives  all-reduce beside a bare loop of the transport; under mpirun -n 2 or more
  step         a whole training step; under mpirun, data parallel
)";

/// "auto" is the first GPU where there is one. @throws UsageError
apex::Device device_of(const std::string& name) {
#ifdef APEX_HAS_CUDA
  const int devices = apex::cuda::device_count();
#else
  const int devices = 0;
#endif
  if (name == "auto") return devices > 0 ? apex::Device{apex::DeviceKind::cuda, 0} : apex::kCpu;
  const auto device = apex::parse_device(name);
  if (!device) throw UsageError("--device is auto, cpu, cuda or cuda:N, not '" + name + "'");
  if (device->is_cuda() && !apex::has_cuda) throw UsageError("--device " + name + ": built without the CUDA backend");
  if (device->is_cuda() && device->index >= devices)
    throw UsageError("--device " + name + ": there are " + std::to_string(devices) + " CUDA devices here");
  return *device;
}

/// Reads the command line of a part that may run with others. @returns false when only help or the version was asked
/// for: then these know it too, and all ranks end
bool parse_among_others(OptionSet& set, int argc, char** argv) {
  set.parse(argc - 1, argv + 1);
  const std::string text = set.text_wanted();
  if (text.empty()) return true;
  if (apex::train::say_and_end("apex_bench", text)) return false;
  apex::dist::run_main([&] {
    const apex::dist::Session session(apex::dist::SessionOptions{.dismiss = true});
    return *apex::train::say_and_end("apex_bench", text, session);
  });
  return false;
}

/// Reads the command line. @returns false when only help or the version was asked for
bool parse(OptionSet& set, int argc, char** argv) {
  set.parse(argc - 1, argv + 1);
  const std::string text = set.text_wanted();
  std::cout << text;
  return text.empty();
}

int kernels(const std::string& what, int argc, char** argv) {
  std::string device = "auto";
  std::int64_t runs = 20, threads = omp_get_max_threads();
  bench::SuiteOptions options;
  OptionSet set("apex_bench " + what, "Times kernels, checks their results, compares with this machine's limits.");
  set.text("device", device, "auto, cpu, cuda or cuda:N");
  set.integer("runs", runs, "runs of each row; the median counts", 1, 10000);
  set.integer("threads", threads, "CPU threads", 1, 4096);
  set.text("only", options.only, "only rows whose title contains this");
  set.text("skip", options.skip, "no rows whose title contains this");
  set.flag("peer", options.peer, "time the same rows in PyTorch, in turn");
  set.text("python", options.python, "the Python that has torch");
  set.text("json", options.json, "write the rows to this file");
  set.flag("list", options.list, "run nothing; print each row's title, a tab and the ops of the op table it is for");
  double bucket_mb = 25;
  const bool optim = what == "optim", ranked = optim && apex::train::launched_with_others();
  if (optim) set.number("bucket-mb", bucket_mb, "over several ranks: MiB of a bucket of gradients", 0.001);
  if (!(optim ? parse_among_others(set, argc, argv) : parse(set, argc, argv))) return 0;
  if (options.list && options.peer) throw UsageError("--list runs nothing: no --peer with it");
  options.device = device_of(device);
  options.runs = static_cast<int>(runs);
  omp_set_num_threads(static_cast<int>(threads));
  if (ranked) {
    if (options.peer) throw UsageError("--peer times one process; leave it out over several ranks");
    return apex::dist::run_main([&] {
      const apex::dist::Session session(apex::dist::SessionOptions{.device = options.device.kind});
      if (const auto code = apex::train::say_and_end("apex_bench", "", session)) return *code;
      bench::run_ranked_optim(session, {.only = options.only,
                                        .skip = options.skip,
                                        .list = options.list,
                                        .runs = options.runs,
                                        .bucket_mb = bucket_mb,
                                        .json = options.json});
      return 0;
    });
  }
  bench::Suite suite(what, options);
  suite.measure_limits();
  if (optim) {
    bench::optimizer_rows(suite);
  } else {
    bench::memory_rows(suite);
    bench::activation_rows(suite);
    bench::batch_norm_rows(suite);
    bench::loss_rows(suite);
    bench::matrix_rows(suite);
    bench::convolution_rows(suite);
    bench::elementwise_rows(suite);
    bench::reduction_rows(suite);
    bench::shape_rows(suite);
    bench::index_rows(suite);
  }
  suite.finish();
  return 0;
}

int collectives(int argc, char** argv) {
  std::string device = "auto";
  std::int64_t most = 256, calls = 100;
  bench::CollectivesOptions options;
  OptionSet set("apex_bench collectives", "Times all-reduce beside a bare loop of NCCL (or MPI on the CPU).");
  set.text("device", device, "auto, cpu or cuda: each rank takes the GPU of its local rank");
  set.integer("most", most, "largest tensor, MiB", 1, 65536);
  set.integer("calls", calls, "calls in one timing", 1, 100000);
  set.text("json", options.json, "write the rows to this file");
  if (!parse_among_others(set, argc, argv)) return 0;
  options.most_bytes = most << 20;
  options.calls = static_cast<int>(calls);
  apex::dist::SessionOptions session_options;
  if (device != "auto") session_options.device = device_of(device).kind;
  return apex::dist::run_main([&] {
    const apex::dist::Session session(session_options);
    if (const auto code = apex::train::say_and_end("apex_bench", "", session)) return *code;
    bench::run_collectives(session, options);
    return 0;
  });
}

int step(int argc, char** argv, std::chrono::steady_clock::time_point started) {
  std::string arch = "resnet20", device = "cpu", dtype = "f32", optimizer = "sgd";
  std::int64_t image = 0, batch = 0, channels = 0, classes = 0, threads = omp_get_max_threads(), rounds = 5, steps = 0;
  std::int64_t count_syncs = 0;
  double loss_scale = 0;
  bool channels_first = false;
  bench::StepOptions options;
  OptionSet set("apex_bench step", "Times a whole training step: forward, loss, backward, optimizer.");
  set.text("arch,a", arch, "resnet20, resnet18, resnet34 or resnet50");
  set.integer("image-size", image, "side of the input; 0: 28 for resnet20, else 224", 0, 4096);
  set.integer("batch-size,b", batch, "per rank; 0: 128 for resnet20, else 16, on CUDA 256", 0, 1 << 20);
  set.integer("channels", channels, "0: 1 for resnet20, else 3", 0, 3);
  set.integer("classes", classes, "0: 10 for resnet20, else 1000", 0, 1 << 20);
  set.integer("threads", threads, "CPU threads", 1, 4096);
  set.text("device", device, "cpu, cuda, cuda:N or auto");
  set.choice("dtype", dtype, {"f64", "f32", "f16", "bf16"}, "16 bits: with f32 masters, momentum and batch norm");
  set.choice("optimizer", optimizer, {"sgd", "adam", "zero-adam"},
             "with momentum; AdamW; AdamW spread over the ranks instead of DistributedDataParallel");
  set.number("loss-scale", loss_scale, "0: 1024 with f16, else 1", 0);
  set.flag("channels-first", channels_first, "NCHW instead of channels-last");
  set.flag("cuda-graph", options.cuda_graph, "launch the step as one CUDA graph");
  set.text("plan-cache", options.plan_cache, "file of convolution plans, read at the start, written at the end");
  set.integer("count-syncs", count_syncs, "then count, over so many steps, what makes the host wait; some is an error",
              0, 100000);
  set.integer("rounds", rounds, "ours and the peer's in turn", 1, 1000);
  set.integer("steps", steps, "steps a round; 0: 5, on CUDA 30", 0, 10000);
  set.choice("peer", options.peer, {"", "eager", "compile", "max-autotune"}, "time the same step in PyTorch, in turn");
  set.text("python", options.python, "the Python that has torch");
  set.text("json", options.json, "write the row to this file");
  if (!parse_among_others(set, argc, argv)) return 0;
  const bool small = arch == "resnet20";
  const auto or_else = [](std::int64_t given, int fallback) { return given > 0 ? static_cast<int>(given) : fallback; };
  bench::StepCase c{.arch = arch,
                    .image = or_else(image, small ? 28 : 224),
                    .channels = or_else(channels, small ? 1 : 3),
                    .classes = or_else(classes, small ? 10 : 1000),
                    .threads = static_cast<int>(threads),
                    .device = device_of(device),
                    .dtype = *apex::parse_dtype(dtype)};
  const bool cuda = c.device.is_cuda();
  c.batch = or_else(batch, small ? 128 : cuda ? 256 : 16);
  c.loss_scale = loss_scale > 0 ? loss_scale : c.dtype == apex::DType::f16 ? 1024 : 1;
  c.channels_last = !channels_first;
  c.optimizer = optimizer;
  if (!options.peer.empty() && optimizer != "sgd") throw UsageError("--peer steps by SGD; leave --optimizer out");
  if (options.cuda_graph && !cuda) throw UsageError("--cuda-graph takes --device cuda");
  if (!options.plan_cache.empty() && !cuda) throw UsageError("--plan-cache takes --device cuda");
  if (count_syncs > 0 && !cuda) throw UsageError("--count-syncs takes --device cuda");
  options.rounds = static_cast<int>(rounds);
  options.steps = or_else(steps, cuda ? 30 : 5);
  options.count_syncs = static_cast<int>(count_syncs);
  options.started = started;
  if (!apex::train::launched_with_others()) {
    bench::run_step(c, options);
    return 0;
  }
  return apex::dist::run_main([&] {
    bench::run_step(c, options);
    return 0;
  });
}

int run(int argc, char** argv) {
  const auto started = std::chrono::steady_clock::now();
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "--version") {
      std::cout << apex::version_text("apex_bench");
      return 0;
    }
    if (what == "step") return step(argc, argv, started);
    if (what == "ops" || what == "optim") return kernels(what, argc, argv);
    if (what == "collectives") return collectives(argc, argv);
    if (what == "--help" || what == "-h") {
      std::cout << kUsage;
      return 0;
    }
    throw UsageError("WHAT must be ops, optim, collectives or step");
  } catch (const UsageError& error) {
    std::cerr << "apex_bench: " << error.what() << "; see apex_bench --help\n";
    return apex::exit_code::kUsage;
  } catch (const apex::Error& error) {
    std::cerr << "apex_bench: " << error.what() << '\n';
    return apex::exit_code_of(error.kind());
  }
}

}  // namespace

int main(int argc, char** argv) {
  apex::fill_standard_streams();
  return apex::finish_output("apex_bench", run(argc, argv));
}
