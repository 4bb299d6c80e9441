# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# The CUDA half of the kernels. One file an op family; few instantiations a file keep the build short.
target_sources(apex_kernels PRIVATE
  src/cuda/activation.cu
  src/cuda/activation_backward.cu
  src/cuda/argmax.cu
  src/cuda/batch_norm.cu
  src/cuda/batch_norm_bf16.cu
  src/cuda/batch_norm_f16.cu
  src/cuda/batch_norm_f32.cu
  src/cuda/batch_norm_f64.cu
  src/cuda/conv.cpp
  src/cuda/conv_direct.cu
  src/cuda/conv_stem.cu
  src/cuda/copy.cu
  src/cuda/copy_floating.cu
  src/cuda/copy_integer.cu
  src/cuda/copy_to_integer.cu
  src/cuda/copy_transfer.cpp
  src/cuda/cross_entropy.cu
  src/cuda/cross_entropy_backward.cu
  src/cuda/cudnn/conv_graph.cpp
  src/cuda/cudnn/plans.cpp
  src/cuda/elementwise_binary.cu
  src/cuda/elementwise_compare.cu
  src/cuda/elementwise_integer.cu
  src/cuda/elementwise_scale.cu
  src/cuda/fill.cu
  src/cuda/gather.cu
  src/cuda/handles.cpp
  src/cuda/image.cu
  src/cuda/image_resize.cu
  src/cuda/index_faults.cu
  src/cuda/loss.cu
  src/cuda/loss_backward.cu
  src/cuda/matmul.cpp
  src/cuda/multi_tensor_adagrad.cu
  src/cuda/multi_tensor_adam.cu
  src/cuda/multi_tensor_axpby.cu
  src/cuda/multi_tensor_flatten.cu
  src/cuda/multi_tensor_lamb.cu
  src/cuda/multi_tensor_norm.cu
  src/cuda/multi_tensor_norms.cu
  src/cuda/multi_tensor_novograd.cu
  src/cuda/multi_tensor_scale.cu
  src/cuda/multi_tensor_sgd.cu
  src/cuda/nll_loss.cu
  src/cuda/pool_average.cu
  src/cuda/pool_max.cu
  src/cuda/random.cu
  src/cuda/reduce_max.cu
  src/cuda/reduce_min.cu
  src/cuda/reduce_sum.cu
  src/cuda/scan.cu
  src/cuda/scatter.cu
  src/cuda/softmax.cu
  src/cuda/softmax_backward.cu
  src/cuda/sort.cu
  src/cuda/sort_lines.cu
  src/cuda/topk.cu
  src/cuda/unary.cu
  src/cuda/unary_backward.cu
)
target_link_libraries(apex_kernels PUBLIC apex_cuda_flags PRIVATE CUDA::cublasLt CUDNN::cudnn CUDNN::frontend)
# What libapex links for them (object libraries hand on no private libraries).
set(APEX_CUDA_LIBRARIES CUDA::cublasLt CUDA::nvrtc CUDA::nvtx3 CUDNN::cudnn NCCL::nccl PARENT_SCOPE)
