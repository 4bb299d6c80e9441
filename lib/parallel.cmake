# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
add_library(apex_parallel OBJECT
  src/contrib/clip_grad.cpp
  src/contrib/optimizers/distributed_fused_adam.cpp
  src/contrib/optimizers/distributed_fused_lamb.cpp
  src/contrib/optimizers/shard_layout.cpp
  src/contrib/optimizers/sharded_checkpoint.cpp
  src/contrib/optimizers/sharded_gradients.cpp
  src/contrib/optimizers/sharded_setup.cpp
  src/contrib/optimizers/sharded_step.cpp
  src/parallel/bucket_plan.cpp
  src/parallel/ddp_setup.cpp
  src/parallel/distributed_data_parallel.cpp
  src/parallel/flatten.cpp
  src/parallel/gradient_bucket.cpp
  src/parallel/larc.cpp
  src/parallel/reducer.cpp)
target_include_directories(apex_parallel PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
target_link_libraries(apex_parallel PUBLIC apex_autograd apex_collectives)
set_target_properties(apex_parallel PROPERTIES POSITION_INDEPENDENT_CODE ON)
apex_add_component(apex_parallel)
