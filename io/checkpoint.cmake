# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex_io PRIVATE
  src/checkpoint/agreement.cpp
  src/checkpoint/child.cpp
  src/checkpoint/directory.cpp
  src/checkpoint/directory_lock.cpp
  src/checkpoint/fault.cpp
  src/checkpoint/h5_types.cpp
  src/checkpoint/layout.cpp
  src/checkpoint/memory_file.cpp
  src/checkpoint/metadata_build.cpp
  src/checkpoint/metadata_parse.cpp
  src/checkpoint/posix_file.cpp
  src/checkpoint/read.cpp
  src/checkpoint/seal.cpp
  src/checkpoint/tree.cpp
  src/checkpoint/write.cpp)
