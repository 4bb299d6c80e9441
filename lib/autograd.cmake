# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex PRIVATE
  src/random.cpp
  src/tensor_ops.cpp
  src/autograd/engine.cpp
  src/autograd/ops.cpp
  src/autograd/tape.cpp
  src/nn/functional/arithmetic.cpp
  src/nn/functional/batch_norm.cpp
  src/nn/functional/linear.cpp
  src/nn/functional/loss.cpp
  src/nn/functional/pool.cpp
  src/nn/functional/reduce.cpp
  src/nn/functional/shape.cpp
  src/nn/functional/unary.cpp)
