# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex PRIVATE
  src/train/meters.cpp
  src/train/option_set.cpp
  src/train/options.cpp
  src/train/signals.cpp)
