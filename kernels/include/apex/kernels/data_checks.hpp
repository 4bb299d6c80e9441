// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace apex::kernels {

/// Whether ops on CUDA look at data that they cannot trust (indices, labels) and throw what the CPU throws for it.
/// Every such op then waits for the device, so this is for finding a fault, not for training; inside a stream capture
/// nothing is checked. Off, unless the environment has APEX_DATA_CHECKS=1 at the first call. The CPU always checks.
bool data_checks() noexcept;
/// For the whole process.
void set_data_checks(bool on) noexcept;

}  // namespace apex::kernels
