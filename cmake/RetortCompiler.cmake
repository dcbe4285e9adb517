# Flags for our own code: warnings are errors. Third-party headers are SYSTEM includes.
add_library(retort_flags INTERFACE)
target_compile_options(
  retort_flags
  INTERFACE
    -Wall
    -Wextra
    -Wpedantic
    -Werror
    -Wno-unused-parameter
    -Wno-missing-field-initializers
    $<$<CONFIG:Release>:-O2>
)
find_program(RETORT_CCACHE ccache)
if(RETORT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RETORT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${RETORT_CCACHE})
endif()
# RETORT_SANITIZE=address,undefined: our code is instrumented, LibTorch is not (presets `asan` and
# `tsan`).
set(RETORT_SANITIZE "" CACHE STRING "sanitizers for -fsanitize=, e.g. address,undefined")
if(RETORT_SANITIZE)
  add_compile_options(
    -fsanitize=${RETORT_SANITIZE}
    -fno-sanitize-recover=all
    -fno-omit-frame-pointer
  )
  add_link_options(-fsanitize=${RETORT_SANITIZE})
endif()
