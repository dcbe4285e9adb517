# Flags for our own code: warnings are errors. Third-party headers are SYSTEM includes.
add_library(retort_flags INTERFACE)
target_compile_options(retort_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-unused-parameter
  -Wno-missing-field-initializers $<$<CONFIG:Release>:-O2>)
find_program(RETORT_CCACHE ccache)
if(RETORT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RETORT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${RETORT_CCACHE})
endif()
find_program(RETORT_MOLD mold)
if(RETORT_MOLD)
  # mold 1.10 can end the read-only segment in the middle of a page; such a program does not start. Depends on its size alone.
  add_link_options(-fuse-ld=mold -Wl,-z,norelro)
endif()

# RETORT_SANITIZE=address,undefined: our code is instrumented, LibTorch is not (presets `asan` and `tsan`).
set(RETORT_SANITIZE "" CACHE STRING "sanitizers for -fsanitize=, e.g. address,undefined")
if(RETORT_SANITIZE)
  add_compile_options(-fsanitize=${RETORT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${RETORT_SANITIZE})
endif()
