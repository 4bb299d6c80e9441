// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Everything a training program needs.
#include "apex/autograd.hpp"
#include "apex/checkpoint.hpp"
#include "apex/collectives/session.hpp"
#include "apex/core/error.hpp"
#include "apex/core/tensor.hpp"
#include "apex/fp16_utils.hpp"
#include "apex/models/resnet.hpp"
#include "apex/multi_tensor_apply.hpp"
#include "apex/nn/activations.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/nn/losses.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/parallel/flatten.hpp"
#include "apex/parallel/reducer.hpp"
#include "apex/random.hpp"
#include "apex/schedules.hpp"
#include "apex/tensor_ops.hpp"
