# The CUDA module: one shared library, libretort_cuda.so, beside the program, which opens it at run
# time. It is built without a GPU, from the CUDA wheels that `./dev build --cuda` installs;
# everything else is built as ever and knows nothing of it. RETORT_CUDA_SITE: the folder into which
# `pip install --target` put those wheels.
set(RETORT_CUDA_SITE "" CACHE PATH "folder that holds the CUDA wheels (./dev build --cuda)")
set(_nvidia ${RETORT_CUDA_SITE}/nvidia)
foreach(
  file
  ${_nvidia}/cu13/include/cuda_runtime_api.h
  ${_nvidia}/nccl/include/nccl.h
  ${_nvidia}/cu13/include/cusparse.h
  ${_nvidia}/cu13/lib/libnvrtc.so.13
)
  if(NOT EXISTS ${file})
    message(
      FATAL_ERROR
      "RETORT_CUDA=ON, but ${file} is missing: run ./dev build --cuda, or pass "
      "-DRETORT_CUDA_SITE=<site-packages with the CUDA 13.0 wheels>"
    )
  endif()
endforeach()

add_library(retort_cuda SHARED)
set_target_properties(
  retort_cuda
  PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
)
target_include_directories(retort_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(
  retort_cuda
  SYSTEM
  PRIVATE ${_nvidia}/cu13/include ${_nvidia}/cu13/include/cccl ${_nvidia}/nccl/include
)
target_compile_definitions(retort_cuda PRIVATE USE_CUDA USE_C10D_NCCL)
target_link_libraries(
  retort_cuda
  PRIVATE
    $<BUILD_INTERFACE:retort_flags>
    retort::base
    retort_torch
    ${RETORT_TORCH_SITE}/torch/lib/libtorch_cuda.so
    ${RETORT_TORCH_SITE}/torch/lib/libc10_cuda.so
    ${_nvidia}/cu13/lib/libcudart.so.13
    ${_nvidia}/nccl/lib/libnccl.so.2
)
# RPATH, not RUNPATH: LibTorch's own CUDA libraries find theirs through it. What they need beyond
# the wheels above is needed only where there is a device (docs/gpu.md).
foreach(
  folder
  cu13
  nccl
  cudnn
  cusparselt
  nvshmem
)
  set_property(TARGET retort_cuda APPEND PROPERTY BUILD_RPATH ${_nvidia}/${folder}/lib)
endforeach()
target_link_options(
  retort_cuda
  PRIVATE -Wl,--disable-new-dtags -Wl,--exclude-libs,ALL -Wl,--no-undefined
)
add_subdirectory(${CMAKE_SOURCE_DIR}/parallel/cuda)
add_subdirectory(${CMAKE_SOURCE_DIR}/rpc/cuda)
add_subdirectory(${CMAKE_SOURCE_DIR}/kernels/cuda)
