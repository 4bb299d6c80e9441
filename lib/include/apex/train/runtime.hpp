// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apex/collectives/session.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/train/options.hpp"

/// The start of every training program, in the order a main calls it.
namespace apex::train {

/// Rank by what the launcher left in the environment (Open MPI, PMIx, PMI, Slurm), before MPI is up; 0 when alone.
int launcher_rank();

/// Whether a launcher started this process with others, before MPI is up.
bool launched_with_others();

/// What a program that was asked for `text` (its help, say; empty: nothing was asked of this rank) does instead of its
/// work: prints it once for the job. Empty when the ranks are to go on: none of them was asked, or this process is
/// alone in the job and was not. Where there are others it needs a Session, and is collective.
std::optional<int> say_and_end(const std::string& program, const std::string& text, const dist::Session& session);
/// The same before a Session is made, for a process that has no others to think of.
std::optional<int> say_and_end(const std::string& program, const std::string& text);

/// One line on stderr, from launcher rank 0 only: "program: message; see program --help". @returns exit_code::kUsage
int report_usage_error(const std::string& program, const std::string& message);

/// Caps the CPU math library at AVX2 when --deterministic asks for the same bits on machines of different kinds. Must
/// come before the first kernel.
void apply_determinism(const TrainOptions& options);

dist::SessionOptions session_options(const TrainOptions& options);
parallel::DistributedDataParallelOptions ddp_options(const TrainOptions& options);

/// How the libraries behind convolutions and products are to work on `device`: --tf32, --deterministic, plans chosen by
/// timing. Before the first op.
void apply_backend(const TrainOptions& options, Device device);

/// CPU threads of this process: --threads, else OMP_NUM_THREADS, else the processors of the affinity mask divided by
/// the ranks that share it. Sets and returns them.
int apply_threads(const TrainOptions& options, const dist::Session& session);

/// What ranks must have in common: names, and values as text.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Stops the job when ranks differ in any of `facts`: "<what>: lr is 0.1 on rank 0, 0.2 on ranks 1, 3; ...". Costs one
/// small all-reduce where all is well. Collective.
/// @throws kind, on every rank alike
void check_same(const dist::ProcessGroup& world, std::string_view what, const Facts& facts, Kind kind);

/// The build ids of the running program and of the library, which tell builds apart.
Facts program_facts();

/// Stops the job before its first step when ranks run different builds of the program or were started with different
/// options, naming what differs. Collective.
/// @throws Kind::argument
void check_same_configuration(const dist::ProcessGroup& world, const std::vector<EffectiveOption>& configuration);

/// The effective configuration as lines "name = value  (origin)"; what is at its default is listed on one line.
std::string describe(const std::vector<EffectiveOption>& configuration);

}  // namespace apex::train
