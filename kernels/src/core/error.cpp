// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/error.hpp"

#include <atomic>
#include <cstdio>

#include "apex/core/cpu.hpp"

namespace apex {
namespace {
std::atomic<int> log_rank{-1};

/// Every program that links apex links this file; through it the check of the machine comes along.
[[gnu::used]] const auto kCheckedAtStart = &missing_cpu_feature;
}  // namespace

const char* to_string(Kind kind) noexcept {
  switch (kind) {
    case Kind::argument: return "argument";
    case Kind::state: return "state";
    case Kind::unsupported: return "unsupported";
    case Kind::exhausted: return "exhausted";
    case Kind::timeout: return "timeout";
    case Kind::communication: return "communication";
    case Kind::data: return "data";
    case Kind::damaged: return "damaged";
    case Kind::numerical: return "numerical";
  }
  return "unknown";
}

const char* to_string(Domain domain) noexcept {
  switch (domain) {
    case Domain::apex: return "apex";
    case Domain::system: return "system";
    case Domain::cuda: return "cuda";
    case Domain::cudnn: return "cudnn";
    case Domain::cublas: return "cublas";
    case Domain::nccl: return "nccl";
    case Domain::mpi: return "mpi";
    case Domain::hdf5: return "hdf5";
    case Domain::dnnl: return "dnnl";
  }
  return "unknown";
}

int exit_code_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::argument:
    case Kind::unsupported: return exit_code::kUsage;
    case Kind::data: return exit_code::kData;
    case Kind::numerical: return exit_code::kNumerical;
    case Kind::damaged: return exit_code::kDamaged;
    case Kind::exhausted: return exit_code::kMemory;
    case Kind::timeout:
    case Kind::communication: return exit_code::kCommunication;
    case Kind::state: return exit_code::kInternal;
  }
  return exit_code::kInternal;
}

Error::Error(Kind kind, std::string_view message, std::source_location where)
    : std::runtime_error(std::string(message)), kind_(kind), where_(where) {}

Error::Error(Kind kind, Domain domain, int code, std::string_view message, std::source_location where)
    : std::runtime_error(std::string(message)), kind_(kind), domain_(domain), code_(code), where_(where) {}

void fail(Kind kind, std::string_view message, std::source_location where) { throw Error(kind, message, where); }

void set_log_rank(int rank) noexcept { log_rank.store(rank, std::memory_order_relaxed); }

void log_warning(std::string_view text) noexcept {
  const int rank = log_rank.load(std::memory_order_relaxed);
  char prefix[32] = "apex: ";
  if (rank >= 0) std::snprintf(prefix, sizeof prefix, "apex: rank %d: ", rank);
  std::fprintf(stderr, "%s%.*s\n", prefix, static_cast<int>(text.size()), text.data());  // one call, one line
}

}  // namespace apex
