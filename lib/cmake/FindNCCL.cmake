# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Finds NCCL: NCCL_ROOT, EBROOTNCCL, the CUDA toolkit's own folders, a conda environment (CONDA_PREFIX), or the layout
# of the wheel nvidia-nccl-cu13 (include/ and lib/libnccl.so.2 beside each other; NCCL_ROOT names it).
#   NCCL_VERSION, target NCCL::nccl
set(_hints ${NCCL_ROOT} ENV NCCL_ROOT ENV EBROOTNCCL ENV CONDA_PREFIX ${CUDAToolkit_ROOT} ${CUDAToolkit_TARGET_DIR}
    ${CUDAToolkit_LIBRARY_ROOT} ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_hints} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${_hints} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NCCL_VERSION "${_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "install NCCL 2 or set NCCL_ROOT to the folder that holds include/nccl.h")
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
