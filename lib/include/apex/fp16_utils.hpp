// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/nn/module.hpp"

/// Training in 16 bits by hand: a converted model, f32 master weights in the optimizer
/// (optimizers::SGDOptions::master_weights) and, for f16, a loss scale.
namespace apex::fp16_utils {

/// Casts the module's own floating parameters, their gradients and its floating buffers, not those of its children.
/// The tensors keep their identity (set_data). @throws Kind::argument when `dtype` is not floating
void convert_module(nn::Module& module, DType dtype);

/// convert_module on every module of the tree except batch norms with affine parameters: their parameters, running
/// statistics and gradients stay as they are, since sums and averages of 16-bit numbers lose too much. A tensor that a
/// kept batch norm shares with another module stays too.
/// @throws Kind::argument when `dtype` is not floating
void convert_network(nn::Module& network, DType dtype);

}  // namespace apex::fp16_utils
