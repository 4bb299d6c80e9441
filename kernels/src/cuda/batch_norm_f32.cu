// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "batch_norm_kernels.cuh"

template struct apex::kernels::cuda::batch_norm::Passes<float>;
