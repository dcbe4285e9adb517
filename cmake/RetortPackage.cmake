# What a package holds (docs/package.md), as install rules in three components: program, cuda and
# tests. `./dev package` installs them into an empty folder and makes the archive from it.
set(_package ${CMAKE_SOURCE_DIR}/cmake/package)

configure_file(${_package}/find_libtorch.sh.in ${CMAKE_BINARY_DIR}/find_libtorch @ONLY)
install(PROGRAMS ${_package}/retort.sh DESTINATION bin RENAME retort COMPONENT program)
install(PROGRAMS ${CMAKE_BINARY_DIR}/find_libtorch DESTINATION lib COMPONENT program)
install(TARGETS retort RUNTIME DESTINATION lib COMPONENT program)
install(
  DIRECTORY ${CMAKE_SOURCE_DIR}/recipes/configs/
  DESTINATION share/recipes
  COMPONENT program
  USE_SOURCE_PERMISSIONS
  PATTERN "__pycache__" EXCLUDE
)

install(
  DIRECTORY ${CMAKE_SOURCE_DIR}/share/environments/
  DESTINATION share/environments
  COMPONENT program
  PATTERN "__pycache__" EXCLUDE
)
install(
  PROGRAMS ${CMAKE_SOURCE_DIR}/python/retort_env.py
  DESTINATION share/environments
  COMPONENT program
)

if(RETORT_CUDA)
  install(TARGETS retort_cuda LIBRARY DESTINATION lib COMPONENT cuda)
endif()

# The tests with the label gpu, and the benchmarks that docs/gpu.md names.
get_property(_tests GLOBAL PROPERTY RETORT_GPU_TESTS)
foreach(_bench kernels_bench loss_memory_bench sft_bench)
  if(TARGET ${_bench})
    list(APPEND _tests ${_bench})
  endif()
endforeach()
add_custom_target(package_tests DEPENDS ${_tests})
if(_tests)
  install(TARGETS ${_tests} RUNTIME DESTINATION tests COMPONENT tests)
endif()
install(PROGRAMS ${_package}/run_tests.sh DESTINATION tests RENAME run COMPONENT tests)
# `python3 tests/on_device` measures and tests on a machine with one GPU.
install(
  DIRECTORY ${CMAKE_SOURCE_DIR}/tests/gpu/on_device
  DESTINATION tests
  COMPONENT tests
  PATTERN "__pycache__" EXCLUDE
)
# The names of metrics that whole runs may write.
install(FILES ${CMAKE_SOURCE_DIR}/docs/metrics.md DESTINATION tests/docs COMPONENT tests)
# The models and numbers that whole runs are compared with.
install(
  DIRECTORY ${CMAKE_SOURCE_DIR}/tests/recipes/goldens
  DESTINATION tests/tests/recipes
  COMPONENT tests
)
