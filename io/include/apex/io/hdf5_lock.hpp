// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>

namespace apex::io {

/// The one lock in front of HDF5, which Debian builds without thread safety: hold it around every HDF5 call, in every
/// thread. Recursive, so that a function which holds it may call another that takes it.
std::recursive_mutex& hdf5_mutex();

}  // namespace apex::io
