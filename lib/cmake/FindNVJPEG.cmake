# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Finds nvJPEG: NVJPEG_ROOT, EBROOTNVJPEG, where `./dev install cuda` unpacks the pinned wheel, the CUDA toolkit's own
# folders, a conda environment (CONDA_PREFIX), or pip's wheel nvidia-nvjpeg among python3's packages (nvidia/cu13 or
# nvidia/nvjpeg, with include/ and lib/libnvjpeg.so.N beside each other). A library of another CUDA major version than
# the toolkit's is not taken.
#   NVJPEG_VERSION, target NVJPEG::nvjpeg
set(_hints ${NVJPEG_ROOT} ENV NVJPEG_ROOT ENV EBROOTNVJPEG ${PROJECT_SOURCE_DIR}/build/deps/nvjpeg ${CUDAToolkit_ROOT}
    ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_LIBRARY_ROOT} ENV CUDA_HOME ENV CUDA_PATH ENV EBROOTCUDA ENV CONDA_PREFIX
    /usr/local/cuda)
if(NOT NVJPEG_LIBRARY)
  find_program(NVJPEG_PYTHON python3)
  mark_as_advanced(NVJPEG_PYTHON)
  if(NVJPEG_PYTHON)
    execute_process(COMMAND ${NVJPEG_PYTHON} -c "import site; print(';'.join(site.getsitepackages()))"
                    OUTPUT_VARIABLE _sites OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _hints ${_sites})
  endif()
endif()
set(_wheels nvidia/cu${CUDAToolkit_VERSION_MAJOR} nvidia/nvjpeg)
list(TRANSFORM _wheels APPEND /include OUTPUT_VARIABLE _wheel_includes)
list(TRANSFORM _wheels APPEND /lib OUTPUT_VARIABLE _wheel_libraries)
find_path(NVJPEG_INCLUDE_DIR nvjpeg.h HINTS ${_hints} PATH_SUFFIXES include ${_wheel_includes})
find_library(NVJPEG_LIBRARY NAMES nvjpeg libnvjpeg.so.${CUDAToolkit_VERSION_MAJOR} NAMES_PER_DIR HINTS ${_hints}
             PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu ${_wheel_libraries})
if(NVJPEG_INCLUDE_DIR)
  file(STRINGS ${NVJPEG_INCLUDE_DIR}/nvjpeg.h _lines REGEX "#define NVJPEG_VER_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NVJPEG_VERSION "${_lines}")
endif()
set(NVJPEG_FITS_CUDA TRUE)
if(NVJPEG_VERSION AND NOT NVJPEG_VERSION MATCHES "^${CUDAToolkit_VERSION_MAJOR}\\.")
  set(NVJPEG_FITS_CUDA FALSE)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVJPEG REQUIRED_VARS NVJPEG_LIBRARY NVJPEG_INCLUDE_DIR NVJPEG_FITS_CUDA
  VERSION_VAR NVJPEG_VERSION
  REASON_FAILURE_MESSAGE "`./dev install cuda` fetches it, or set NVJPEG_ROOT to the folder that holds include/nvjpeg.h \
of CUDA ${CUDAToolkit_VERSION_MAJOR}")
if(NVJPEG_FOUND AND NOT TARGET NVJPEG::nvjpeg)
  add_library(NVJPEG::nvjpeg UNKNOWN IMPORTED)
  set_target_properties(NVJPEG::nvjpeg PROPERTIES IMPORTED_LOCATION ${NVJPEG_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${NVJPEG_INCLUDE_DIR})
endif()
mark_as_advanced(NVJPEG_INCLUDE_DIR NVJPEG_LIBRARY)
