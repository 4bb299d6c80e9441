# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex PRIVATE
  src/train/classifier.cpp
  src/train/common_facts.cpp
  src/train/host_link.cpp
  src/train/lagged_sums.cpp
  src/train/meters.cpp
  src/train/option_set.cpp
  src/train/options.cpp
  src/train/plan_cache.cpp
  src/train/prefetch.cpp
  src/train/reporter.cpp
  src/train/resume.cpp
  src/train/runtime.cpp
  src/train/signals.cpp
  src/train/step_graph.cpp
  src/train/trainer.cpp
  src/train/trainer_checkpoint.cpp)
if(APEX_ENABLE_CUDA)
  target_sources(apex PRIVATE src/train/cuda/captured_graph.cpp)
  if(APEX_HAS_NVJPEG)
    target_sources(apex PRIVATE src/train/cuda/nvjpeg_decoder.cpp)
    target_link_libraries(apex PRIVATE NVJPEG::nvjpeg)
    target_compile_definitions(apex PRIVATE APEX_HAS_NVJPEG=1)
  endif()
endif()
