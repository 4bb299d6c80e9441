# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Target docs: the API documentation of all public headers, by Doxygen, in docs/html of the build folder.
#   APEX_DOXYFILE  the configuration; APEX_DOCS_DIR  where the pages go
set(APEX_DOCS_DIR ${PROJECT_BINARY_DIR}/docs)
set(APEX_DOXYFILE ${PROJECT_BINARY_DIR}/Doxyfile)
configure_file(${PROJECT_SOURCE_DIR}/lib/cmake/Doxyfile.in ${APEX_DOXYFILE} @ONLY)

find_program(DOXYGEN_EXECUTABLE doxygen)
if(APEX_BUILD_DOCS AND NOT DOXYGEN_EXECUTABLE)
  message(FATAL_ERROR "APEX_BUILD_DOCS=ON, but there is no doxygen on PATH; install it or set DOXYGEN_EXECUTABLE")
endif()
if(DOXYGEN_EXECUTABLE AND PROJECT_IS_TOP_LEVEL)
  set(_all)
  if(APEX_BUILD_DOCS)
    set(_all ALL)
  endif()
  add_custom_target(docs ${_all} COMMAND ${CMAKE_COMMAND} -E make_directory ${APEX_DOCS_DIR}
                    COMMAND ${DOXYGEN_EXECUTABLE} ${APEX_DOXYFILE} COMMENT "Writing the API documentation" VERBATIM)
endif()
