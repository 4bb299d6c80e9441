# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Finds cuDNN: CUDNN_ROOT, EBROOTCUDNN, the CUDA toolkit's own folders, a conda environment (CONDA_PREFIX), or the
# layout of the wheel nvidia-cudnn-cu13 (include/ and lib/libcudnn.so.9 beside each other; CUDNN_ROOT names it).
#   CUDNN_VERSION, target CUDNN::cudnn
set(_hints ${CUDNN_ROOT} ENV CUDNN_ROOT ENV EBROOTCUDNN ENV CONDA_PREFIX ${CUDAToolkit_ROOT} ${CUDAToolkit_TARGET_DIR}
    ${CUDAToolkit_LIBRARY_ROOT} ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${_hints} PATH_SUFFIXES include include/x86_64-linux-gnu)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${_hints} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)
if(CUDNN_INCLUDE_DIR AND EXISTS ${CUDNN_INCLUDE_DIR}/cudnn_version.h)
  file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h _lines REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCHLEVEL +([0-9]+).*" "\\1.\\2.\\3" CUDNN_VERSION "${_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION
  REASON_FAILURE_MESSAGE "install cuDNN 9 or set CUDNN_ROOT to the folder that holds include/cudnn.h")
if(CUDNN_FOUND AND NOT TARGET CUDNN::cudnn)
  add_library(CUDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(CUDNN::cudnn PROPERTIES IMPORTED_LOCATION ${CUDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${CUDNN_INCLUDE_DIR})
endif()
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
