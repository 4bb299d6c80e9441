// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/runtime.hpp"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "apex/core/program.hpp"
#include "apex/kernels/backend.hpp"

namespace apex::train {
namespace {

/// Processors of this process's affinity mask divided by the local ranks that have the same mask: a launcher that binds
/// gives each rank its own, one that does not lets them share. Collective.
int processors_of_this_rank(const dist::Session& session) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  const std::string mine(reinterpret_cast<const char*>(&mask), sizeof mask);
  const auto all = session.world().node_local().all_gather(mine, "affinity masks");
  return std::max(1, CPU_COUNT(&mask) / static_cast<int>(std::count(all.begin(), all.end(), mine)));
}

/// Options that may differ between ranks: what a launcher tells each of them apart by.
bool may_differ(const std::string& name) { return name == "local-rank"; }

}  // namespace

int launcher_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

bool launched_with_others() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* size = std::getenv(name); size != nullptr && std::atoi(size) > 1) return true;
  return false;
}

std::optional<int> say_and_end(const std::string& program, const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (launched_with_others() && !dist::launcher_problem_before_mpi()) return std::nullopt;
  if (launcher_rank() == 0) std::cout << text;
  return finish_output(program, exit_code::kOk);
}

std::optional<int> say_and_end(const std::string& program, const std::string& text, const dist::Session& session) {
  if (!session.dismissed()) return std::nullopt;
  const auto texts = session.world().all_gather(text, "what is to be said");
  if (session.rank() == 0)
    std::cout << *std::find_if(texts.begin(), texts.end(), [](const std::string& t) { return !t.empty(); });
  return finish_output(program, exit_code::kOk);
}

int report_usage_error(const std::string& program, const std::string& message) {
  if (launcher_rank() == 0)
    std::fprintf(stderr, "%s: %s; see %s --help\n", program.c_str(), message.c_str(), program.c_str());
  return exit_code::kUsage;
}

void apply_determinism(const TrainOptions& options) {
  if (options.deterministic) setenv("DNNL_MAX_CPU_ISA", "AVX2", 0);
}

dist::SessionOptions session_options(const TrainOptions& options) {
  dist::SessionOptions out;
  out.timeout_s = options.timeout;
  out.expect_ranks = static_cast<int>(options.expect_ranks);
  out.deterministic = options.deterministic;
  out.allow_shared_device = options.allow_gpu_sharing;
  if (options.device == "auto") return out;
  const auto device = *parse_device(options.device);
  out.device = device.kind;
  if (options.device.find(':') != std::string::npos) out.device_index = device.index;
  return out;
}

void apply_backend(const TrainOptions& options, Device device) {
  if (!device.is_cuda()) return;
  kernels::set_allow_tf32(options.tf32);
  kernels::set_deterministic(options.deterministic);
  // Which of several plans is fastest differs from run to run, and with it the last bits.
  kernels::set_plan_choice(options.deterministic ? kernels::PlanChoice::heuristic : kernels::PlanChoice::timed);
}

parallel::DistributedDataParallelOptions ddp_options(const TrainOptions& options) {
  parallel::DistributedDataParallelOptions out;
  if (options.message_size > 0)
    out.message_size = options.message_size;
  else
    out.bucket_cap_mb = options.bucket_cap_mb;
  return out;
}

int apply_threads(const TrainOptions& options, const dist::Session& session) {
  int threads = static_cast<int>(options.threads);
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") != nullptr) return omp_get_max_threads();
  const int mine = processors_of_this_rank(session);
  if (threads == 0) threads = mine;
  if (threads > mine && session.rank() == 0)
    log_warning(
        concat("--threads ", threads, " is more than the ", mine, " processor(s) of this rank: steps will be slow"));
  omp_set_num_threads(threads);
  return threads;
}

void check_same_configuration(const dist::ProcessGroup& world, const std::vector<EffectiveOption>& configuration) {
  Facts facts = program_facts();
  for (const auto& option : configuration)
    if (!may_differ(option.name)) facts.emplace_back("--" + option.name, option.value);
  check_same(world, "ranks were started differently", facts, Kind::argument);
}

std::string describe(const std::vector<EffectiveOption>& configuration) {
  std::string out, defaults;
  for (const auto& o : configuration) {
    if (o.origin == "default")
      defaults += concat(defaults.empty() ? "" : " ", o.name, '=', o.value.empty() ? "\"\"" : o.value);
    else
      out += concat("   ", o.name, " = ", o.value, "  (", o.origin, ")\n");
  }
  return out + "   defaults: " + defaults;
}

}  // namespace apex::train
