// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

namespace apex::cuda {

/// The stream of a device's default context; makes the device the calling thread's.
cudaStream_t main_stream(int device);

}  // namespace apex::cuda
