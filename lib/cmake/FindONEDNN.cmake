# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Finds oneDNN by its header and library. Distributions' own package files may ask for OpenCL or TBB development files
# that a CPU build does not need. Honours ONEDNN_ROOT, DNNL_ROOT and EBROOTONEDNN.
#   ONEDNN_VERSION, target DNNL::dnnl
find_path(ONEDNN_INCLUDE_DIR dnnl.hpp HINTS ${DNNL_ROOT} ENV DNNL_ROOT ENV EBROOTONEDNN PATH_SUFFIXES include)
find_library(ONEDNN_LIBRARY dnnl HINTS ${DNNL_ROOT} ENV DNNL_ROOT ENV EBROOTONEDNN PATH_SUFFIXES lib lib64)
set(_version_header ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
if(ONEDNN_INCLUDE_DIR AND EXISTS ${_version_header})
  file(STRINGS ${_version_header} _lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" ONEDNN_VERSION "${_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONEDNN REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR VERSION_VAR ONEDNN_VERSION)
if(ONEDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${ONEDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${ONEDNN_INCLUDE_DIR})
endif()
mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
