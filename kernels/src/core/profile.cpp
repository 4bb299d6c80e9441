// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/profile.hpp"

#include "apex/core/device.hpp"
#ifdef APEX_HAS_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace apex {

#ifdef APEX_HAS_CUDA
ProfileRange::ProfileRange(const char* name) noexcept { nvtxRangePushA(name); }
ProfileRange::~ProfileRange() { nvtxRangePop(); }
#else
ProfileRange::ProfileRange(const char*) noexcept {}
ProfileRange::~ProfileRange() = default;
#endif

}  // namespace apex
