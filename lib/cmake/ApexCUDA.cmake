# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# What the CUDA backend needs. Whatever is missing is an error that says where it was looked for; nvJPEG alone may be.
#   CMAKE_CUDA_ARCHITECTURES  90 unless given; 75 to 100 compile
#   APEX_HAS_NVJPEG           whether nvJPEG was found, which APEX_ENABLE_NVJPEG asks for
#   apex_cuda_flags           language level and warnings of .cu files, and the define that tells headers of the backend
#   APEX_CUDA_SUMMARY         versions, for the last lines of configure
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH ENV EBROOTCUDA /usr/local/cuda
               PATH_SUFFIXES bin DOC "The CUDA compiler" NO_CACHE)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "APEX_ENABLE_CUDA=ON, but there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda; set "
                        "CMAKE_CUDA_COMPILER or configure with APEX_ENABLE_CUDA=OFF")
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to compile for")
endif()
if(APEX_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${APEX_CCACHE})
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime for libapex, cuDNN, NCCL and the program
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)
find_package(CUDNN 9.0 REQUIRED)
find_package(CUDNNFrontend 1.12 REQUIRED)
find_package(NCCL 2.18 REQUIRED)
set(APEX_HAS_NVJPEG OFF)
if(APEX_ENABLE_NVJPEG STREQUAL ON)
  find_package(NVJPEG 12.2 REQUIRED)
elseif(APEX_ENABLE_NVJPEG STREQUAL AUTO)
  find_package(NVJPEG 12.2 QUIET)
elseif(NOT APEX_ENABLE_NVJPEG STREQUAL OFF)
  message(FATAL_ERROR "APEX_ENABLE_NVJPEG is '${APEX_ENABLE_NVJPEG}', takes AUTO, ON or OFF")
endif()
set(_nvjpeg "no nvJPEG")
if(NVJPEG_FOUND AND NOT APEX_ENABLE_NVJPEG STREQUAL OFF)
  set(APEX_HAS_NVJPEG ON)
  set(_nvjpeg "nvJPEG ${NVJPEG_VERSION}")
elseif(APEX_ENABLE_NVJPEG STREQUAL AUTO)
  message(STATUS "nvJPEG was not found, so pictures are decoded by the CPU only; `./dev install cuda` fetches it, or set NVJPEG_ROOT")
endif()

add_library(apex_cuda_flags INTERFACE)
target_compile_definitions(apex_cuda_flags INTERFACE APEX_HAS_CUDA=1)
# CMake 3.25 knows no C++20 for nvcc, so the option is spelled out.
target_compile_options(apex_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Xfatbin=-compress-all;-diag-suppress=177>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${APEX_WARNINGS_AS_ERRORS}>>:-Werror=all-warnings>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off>")
target_link_libraries(apex_cuda_flags INTERFACE CUDA::cudart)

set(APEX_CUDA_SUMMARY "toolkit ${CUDAToolkit_VERSION} for sm ${CMAKE_CUDA_ARCHITECTURES}, cuDNN ${CUDNN_VERSION}, \
cudnn-frontend ${CUDNNFrontend_VERSION}, NCCL ${NCCL_VERSION}, ${_nvjpeg}")
