# Flags for our own code: warnings are errors. Third-party headers are SYSTEM includes.
add_library(retort_warnings INTERFACE)
target_compile_options(
  retort_warnings
  INTERFACE
    -Wall
    -Wextra
    -Wpedantic
    -Werror
    -Wno-unused-parameter
    -Wno-missing-field-initializers
)
# In a unity file no .cc is the main one, which is where GCC takes anonymous namespaces for granted.
if(RETORT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(retort_warnings INTERFACE -Wno-subobject-linkage)
endif()
add_library(retort_flags INTERFACE)
target_compile_options(retort_flags INTERFACE $<$<CONFIG:Release>:-O2>)
target_link_libraries(retort_flags INTERFACE retort_warnings)
# Code that runs a few times a step and leaves the work to other modules: -O1 takes a third off its
# compilation.
add_library(retort_cold_flags INTERFACE)
target_compile_options(retort_cold_flags INTERFACE $<$<CONFIG:Release>:-O1>)
target_link_libraries(retort_cold_flags INTERFACE retort_warnings)
# The tests' own code runs once and in no time: -O1 takes a quarter off its compilation.
add_library(retort_test_flags INTERFACE)
target_compile_options(retort_test_flags INTERFACE $<$<CONFIG:Release>:-O1>)
target_link_libraries(retort_test_flags INTERFACE retort_warnings)

find_program(RETORT_CCACHE ccache)
if(RETORT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RETORT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${RETORT_CCACHE})
endif()
