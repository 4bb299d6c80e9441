// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// How the vendor libraries behind convolution and matrix product are used. Settings of the process; set them before
/// the first op, or between steps. None of them changes anything on the CPU.
namespace apex::kernels {

/// Whether f32 convolutions and products on CUDA may round their inputs to TF32 (10 bits of mantissa). Off at start.
void set_allow_tf32(bool on) noexcept;
bool allow_tf32() noexcept;

/// Only algorithms that give the same bits every time. Off at start.
void set_deterministic(bool on) noexcept;
bool deterministic() noexcept;

/// How an execution plan is chosen for a shape that has none yet: the library's first suggestion that runs, or the
/// fastest of its suggestions, timed once on the tensors at hand (a few milliseconds to a second for each shape).
enum class PlanChoice { heuristic, timed };
/// heuristic at start. A shape whose plan was chosen by heuristic is timed once it comes up again under `timed`.
void set_plan_choice(PlanChoice choice) noexcept;
PlanChoice plan_choice() noexcept;

/// Most scratch memory of one plan, in bytes; plans that want more are passed over.
void set_workspace_limit(std::size_t bytes) noexcept;
std::size_t workspace_limit() noexcept;

/// The plans chosen so far, as bytes to be kept in a file and handed back to import_plans: they carry the versions of
/// the libraries and the name of the device.
std::string export_plans();
/// Takes over plans chosen by an earlier process. @returns how many; 0 for bytes made with other versions, for another
/// device, or damaged: then plans are chosen as if there were none.
std::size_t import_plans(std::string_view bytes);
/// Plans chosen (not imported) by this process.
std::size_t plans_chosen() noexcept;
/// Forgets every plan, chosen and imported: each shape starts afresh. Not while ops are being queued by other threads.
void clear_plans() noexcept;

}  // namespace apex::kernels
