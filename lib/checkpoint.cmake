# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex PRIVATE
  src/checkpoint/load.cpp
  src/checkpoint/names.cpp
  src/checkpoint/save.cpp)
