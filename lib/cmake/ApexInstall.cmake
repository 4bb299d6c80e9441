# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# What `cmake --install` puts where. The whole may be moved afterwards: programs and library find each other by their
# own places, and the package files name none of this machine's folders.
#   bin/                   programs
#   include/apex/          headers
#   lib/                   libapex, and libapex_probe of apex_bench
#   lib/cmake/Apex/        for find_package(Apex 0.1): one target, Apex::apex
#   lib/pkgconfig/apex.pc  where libapex is shared
#   share/apex/slurm/      batch scripts
#   share/doc/apex/        README.md, LICENSE, and html/ with APEX_BUILD_DOCS
include(CMakePackageConfigHelpers)

foreach(folder kernels collectives io lib)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.hpp")
endforeach()

# What a program that uses the installed library is compiled with, beyond what its dependencies bring.
target_include_directories(apex INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(apex INTERFACE cxx_std_20)
target_link_libraries(apex INTERFACE $<INSTALL_INTERFACE:MPI::MPI_CXX>)
if(APEX_ENABLE_CUDA)
  target_compile_definitions(apex INTERFACE $<INSTALL_INTERFACE:APEX_HAS_CUDA=1>)
  target_compile_options(apex INTERFACE
    "$<INSTALL_INTERFACE:$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>>")
  target_link_libraries(apex INTERFACE $<INSTALL_INTERFACE:NCCL::nccl>)  # apex/collectives/nccl.hpp includes its header
endif()
if(APEX_SANITIZE)
  target_compile_options(apex INTERFACE $<INSTALL_INTERFACE:-fsanitize=${APEX_SANITIZE}>)
  target_link_options(apex INTERFACE $<INSTALL_INTERFACE:-fsanitize=${APEX_SANITIZE}>)
endif()

# Beside their own places, the folders of libraries that the linker was given: those of modules are on no default path.
file(RELATIVE_PATH _to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
get_property(_programs GLOBAL PROPERTY APEX_PROGRAMS)
set_target_properties(${_programs} PROPERTIES INSTALL_RPATH "$ORIGIN/${_to_lib}" INSTALL_RPATH_USE_LINK_PATH ON)
set_target_properties(apex PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS ${_programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS apex EXPORT ApexTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# nvJPEG's library comes along where `./dev` fetched it: nothing else of this machine leads there.
if(TARGET NVJPEG::nvjpeg AND APEX_SHARED)
  file(REAL_PATH ${NVJPEG_LIBRARY} _nvjpeg)
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR ${_nvjpeg} NORMALIZE _is_ours)
  if(_is_ours)
    install(FILES ${_nvjpeg} DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endif()
if(TARGET apex_probe)
  set_target_properties(apex_probe PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS apex_probe LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/slurm/imagenet_train.sbatch ${PROJECT_SOURCE_DIR}/slurm/imagenet_train_mpirun.sbatch
        DESTINATION ${CMAKE_INSTALL_DATADIR}/apex/slurm)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(APEX_BUILD_DOCS)
  install(DIRECTORY ${APEX_DOCS_DIR}/html DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Apex)
install(EXPORT ApexTargets NAMESPACE Apex:: DESTINATION ${_package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/lib/cmake/ApexConfig.cmake.in ${PROJECT_BINARY_DIR}/ApexConfig.cmake
                              INSTALL_DESTINATION ${_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ApexConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ApexConfig.cmake ${PROJECT_BINARY_DIR}/ApexConfigVersion.cmake
        DESTINATION ${_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lib/cmake/ DESTINATION ${_package_dir} FILES_MATCHING PATTERN "Find*.cmake")

if(APEX_SHARED)
  file(RELATIVE_PATH _to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(_pc_defines "")
  if(APEX_ENABLE_CUDA)
    set(_pc_defines " -DAPEX_HAS_CUDA=1")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/lib/cmake/apex.pc.in ${PROJECT_BINARY_DIR}/apex.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/apex.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
