// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/hdf5_lock.hpp"

#include <hdf5.h>

namespace apex::io {

std::recursive_mutex& hdf5_mutex() {
  // HDF5 1.10 can keep an id of a damaged file that it failed to close and then crash on it in its exit handler, in
  // place of the program's exit code. We close all we open, so the handler has nothing to do; this must come before any
  // other call into HDF5.
  static const herr_t no_exit_handler = H5dont_atexit();
  static_cast<void>(no_exit_handler);
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace apex::io
