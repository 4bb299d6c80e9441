# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex_io PRIVATE
  src/data/hdf5_lock.cpp
)
