# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Everything of the library that needs neither MPI nor files; objects of their own, so that its tests link no more.
add_library(apex_autograd OBJECT
  src/amp/loss_scaler.cpp
  src/fp16_utils.cpp
  src/multi_tensor_apply.cpp
  src/random.cpp
  src/schedules.cpp
  src/tensor_ops.cpp
  src/autograd/engine.cpp
  src/autograd/ops.cpp
  src/autograd/tape.cpp
  src/contrib/openfold_triton/fused_adam_swa.cpp
  src/contrib/optimizers/fp16_optimizer.cpp
  src/contrib/optimizers/fused_adam.cpp
  src/contrib/optimizers/fused_lamb.cpp
  src/contrib/optimizers/fused_sgd.cpp
  src/contrib/optimizers/step_arguments.cpp
  src/models/resnet.cpp
  src/nn/functional/activation.cpp
  src/nn/functional/arithmetic.cpp
  src/nn/functional/batch_norm.cpp
  src/nn/functional/conv.cpp
  src/nn/functional/dropout.cpp
  src/nn/functional/index.cpp
  src/nn/functional/join.cpp
  src/nn/functional/linear.cpp
  src/nn/functional/loss.cpp
  src/nn/functional/pointwise_loss.cpp
  src/nn/functional/pool.cpp
  src/nn/functional/reduce.cpp
  src/nn/functional/shape.cpp
  src/nn/functional/unary.cpp
  src/nn/init.cpp
  src/nn/layers.cpp
  src/nn/module.cpp
  src/optimizers/fused_adagrad.cpp
  src/optimizers/fused_adam.cpp
  src/optimizers/fused_lamb.cpp
  src/optimizers/fused_novograd.cpp
  src/optimizers/fused_sgd.cpp
  src/optimizers/global_norm.cpp
  src/optimizers/optimizer.cpp
  src/optimizers/optimizer_state.cpp
  src/optimizers/optimizer_step.cpp)
target_include_directories(apex_autograd PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
target_link_libraries(apex_autograd PUBLIC apex_core apex_kernels)
set_target_properties(apex_autograd PROPERTIES POSITION_INDEPENDENT_CODE ON)
apex_add_component(apex_autograd)
