// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include "apex/core/device.hpp"
#include "backend_impl.hpp"

namespace apex::kernels {
namespace {

std::atomic<bool> tf32{false}, same_bits{false};
std::atomic<PlanChoice> choice{PlanChoice::heuristic};
std::atomic<std::size_t> limit{std::size_t{1} << 30};

}  // namespace

void set_allow_tf32(bool on) noexcept { tf32 = on; }
bool allow_tf32() noexcept { return tf32; }

void set_deterministic(bool on) noexcept { same_bits = on; }
bool deterministic() noexcept { return same_bits; }

void set_plan_choice(PlanChoice how) noexcept { choice = how; }
PlanChoice plan_choice() noexcept { return choice; }

void set_workspace_limit(std::size_t bytes) noexcept { limit = bytes; }
std::size_t workspace_limit() noexcept { return limit; }

std::string export_plans() {
  if constexpr (has_cuda)
    return cuda::export_plans();
  else
    return {};
}

std::size_t import_plans([[maybe_unused]] std::string_view bytes) {
  if constexpr (has_cuda)
    return cuda::import_plans(bytes);
  else
    return 0;
}

std::size_t plans_chosen() noexcept {
  if constexpr (has_cuda)
    return cuda::plans_chosen();
  else
    return 0;
}

void clear_plans() noexcept {
  if constexpr (has_cuda) cuda::clear_plans();
}

}  // namespace apex::kernels
