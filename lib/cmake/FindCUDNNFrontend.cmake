# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Finds the headers of cudnn-frontend: CUDNNFrontend_ROOT, EBROOTCUDNNMINFRONTEND, a conda environment, or where
# `./dev install cuda` unpacks the pinned wheel.
#   CUDNNFrontend_VERSION, target CUDNN::frontend
find_path(CUDNNFrontend_INCLUDE_DIR cudnn_frontend.h
  HINTS ${CUDNNFrontend_ROOT} ENV CUDNNFrontend_ROOT ENV EBROOTCUDNNMINFRONTEND ${PROJECT_SOURCE_DIR}/build/deps/cudnn-frontend
        ENV CONDA_PREFIX
  PATH_SUFFIXES include)
if(CUDNNFrontend_INCLUDE_DIR AND EXISTS ${CUDNNFrontend_INCLUDE_DIR}/cudnn_frontend_version.h)
  file(STRINGS ${CUDNNFrontend_INCLUDE_DIR}/cudnn_frontend_version.h _lines
       REGEX "#define CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION +[0-9]+")
  string(REGEX REPLACE ".*MAJOR_VERSION +([0-9]+).*MINOR_VERSION +([0-9]+).*PATCH_VERSION +([0-9]+).*" "\\1.\\2.\\3"
         CUDNNFrontend_VERSION "${_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNNFrontend REQUIRED_VARS CUDNNFrontend_INCLUDE_DIR
  VERSION_VAR CUDNNFrontend_VERSION
  REASON_FAILURE_MESSAGE "`./dev install cuda` fetches it, or set CUDNNFrontend_ROOT to the folder that holds include/cudnn_frontend.h")
if(CUDNNFrontend_FOUND AND NOT TARGET CUDNN::frontend)
  add_library(CUDNN::frontend INTERFACE IMPORTED)
  set_target_properties(CUDNN::frontend PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${CUDNNFrontend_INCLUDE_DIR}
                        INTERFACE_INCLUDE_DIRECTORIES ${CUDNNFrontend_INCLUDE_DIR})
endif()
mark_as_advanced(CUDNNFrontend_INCLUDE_DIR)
