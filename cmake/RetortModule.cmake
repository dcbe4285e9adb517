# retort_module(name [TORCH_HEADERS] [COLD] SOURCES ... HEADERS ... USES ... PRIVATE ...)
#   A static library retort_<name> (alias retort::<name>). HEADERS are its public headers, which
#   compile alone: one with a .cc of its name is that file's first include
#   (tests/house/layering_test.cc), the others are compiled by VERIFY_INTERFACE_HEADER_SETS. USES
#   are the retort modules it may include, PRIVATE the packages its .cc files need. TORCH_HEADERS:
#   most of its files include LibTorch's headers, which are precompiled. COLD: no step waits for it.
function(retort_module name)
  cmake_parse_arguments(M "TORCH_HEADERS;COLD" "" "SOURCES;HEADERS;USES;PRIVATE" ${ARGN})
  set(target retort_${name})
  add_library(${target} STATIC ${M_SOURCES})
  add_library(retort::${name} ALIAS ${target})
  set(without_source ${M_HEADERS})
  foreach(source ${M_SOURCES})
    string(REGEX REPLACE "[.]cc$" ".h" header ${source})
    list(REMOVE_ITEM without_source ${header})
  endforeach()
  target_sources(
    ${target}
    PUBLIC
      FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${M_HEADERS}
      FILE_SET without_source
      TYPE HEADERS
      BASE_DIRS ${CMAKE_SOURCE_DIR}
      FILES ${without_source}
  )
  set_target_properties(
    ${target}
    PROPERTIES
      VERIFY_INTERFACE_HEADER_SETS ON
      INTERFACE_HEADER_SETS_TO_VERIFY without_source
  )
  retort_form_units(${target})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  foreach(use ${M_USES})
    target_link_libraries(${target} PUBLIC retort::${use})
  endforeach()
  set(flags retort_flags)
  if(M_COLD)
    set(flags retort_cold_flags)
  endif()
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${flags}> ${M_PRIVATE})
  if(M_TORCH_HEADERS)
    target_precompile_headers(${target} REUSE_FROM retort_torch_headers)
  endif()
endfunction()

# retort_test_library(name SOURCES ... USES ... PRIVATE ...): what several tests share, compiled
#   once: a static library retort_<name> (alias retort::<name>). Its files are compiled as those of
#   executables are, so that the tests' precompiled headers serve them.
function(retort_test_library name)
  cmake_parse_arguments(L "" "" "SOURCES;USES;PRIVATE" ${ARGN})
  set(target retort_${name})
  add_library(${target} STATIC ${L_SOURCES})
  add_library(retort::${name} ALIAS ${target})
  target_link_libraries(${target} PUBLIC retort::test_support)
  foreach(use ${L_USES})
    target_link_libraries(${target} PUBLIC retort::${use})
  endforeach()
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:retort_test_flags> ${L_PRIVATE})
  retort_form_units(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIE)
  retort_use_test_headers(${target} ${L_USES})
endfunction()

# Where files include LibTorch's headers, which is wherever something but these is used: parsing
# those is half of a test's compilation.
function(retort_use_test_headers target)
  set(uses ${ARGN})
  list(REMOVE_ITEM uses base http house_sources scripted_server)
  if(uses)
    target_precompile_headers(${target} REUSE_FROM retort_test_headers)
  endif()
endfunction()

# retort_test(name LABEL <unit|contract|multiproc|parity|fault|gpu> SOURCES ... USES ...)
function(retort_test name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;USES" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  retort_is_sanitized(sanitized ${name} ${T_LABEL})
  if(sanitized)
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * ${RETORT_SANITIZE_SLOWNESS}")
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE retort_test_flags retort::test_support)
  foreach(use ${T_USES})
    target_link_libraries(${name} PRIVATE retort::${use})
  endforeach()
  retort_form_units(${name})
  set_target_properties(
    ${name}
    PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
  )
  retort_use_test_headers(${name} ${T_USES})
  add_test(NAME ${name} COMMAND ${name})
  if(T_LABEL STREQUAL "gpu")
    set_property(GLOBAL APPEND PROPERTY RETORT_GPU_TESTS ${name}) # RetortPackage.cmake
  endif()
  # ctest begins with the dearest: tests of whole runs, those that may take longest first, so that
  # short ones fill the end. What it measures itself counts from the second time on.
  set(cost 1)
  if(T_LABEL MATCHES "^(multiproc|parity|fault|engines_light)$")
    set(cost ${T_TIMEOUT})
  endif()
  set(
    environment
    OMP_NUM_THREADS=1
    MKL_NUM_THREADS=1
    OMP_WAIT_POLICY=passive
    RETORT_BIN=${CMAKE_BINARY_DIR}/bin/retort
    RETORT_SOURCE_DIR=${CMAKE_SOURCE_DIR}
  )
  set(labels ${T_LABEL})
  if(sanitized)
    list(APPEND labels sanitized_tests)
    list(APPEND environment ${RETORT_SANITIZE_ENVIRONMENT})
    add_dependencies(sanitized_tests ${name})
  endif()
  set_tests_properties(
    ${name}
    PROPERTIES
      LABELS "${labels}"
      TIMEOUT ${T_TIMEOUT}
      COST ${cost}
      ENVIRONMENT
        "${environment}"
  )
endfunction()

# retort_bench(name SOURCES ... USES ...): an executable in <build>/bench; `./dev bench` builds and
# runs them.
function(retort_bench name)
  cmake_parse_arguments(B "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${B_SOURCES})
  target_link_libraries(${name} PRIVATE retort_flags)
  foreach(use ${B_USES})
    target_link_libraries(${name} PRIVATE retort::${use})
  endforeach()
  retort_form_units(${name})
  # Its files are compiled as those of the modules are, whose precompiled headers serve them.
  set_target_properties(
    ${name}
    PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench
      POSITION_INDEPENDENT_CODE OFF
  )
  target_compile_options(${name} PRIVATE -fPIC)
  target_precompile_headers(${name} REUSE_FROM retort_torch_headers)
endfunction()
