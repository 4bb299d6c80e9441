# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# The CUDA half of the kernels. One file an op family; few instantiations a file keep the build short.
target_sources(apex_kernels PRIVATE
  src/cuda/handles.cpp
  src/cuda/matmul.cpp
)
target_link_libraries(apex_kernels PUBLIC apex_cuda_flags PRIVATE CUDA::cublasLt CUDNN::cudnn CUDNN::frontend)
# What libapex links for them (object libraries hand on no private libraries).
set(APEX_CUDA_LIBRARIES CUDA::cublasLt CUDA::nvrtc CUDA::nvtx3 CUDNN::cudnn NCCL::nccl PARENT_SCOPE)
