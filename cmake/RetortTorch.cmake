# LibTorch from the torch wheel. find_package(Torch) wants the CUDA toolkit, so the targets are
# written by hand. RETORT_TORCH_SITE: the folder into which `pip install --target` put torch and the
# two small CUDA runtime wheels. `./dev setup` does that and passes the path; the default is where
# it puts them.
set(RETORT_TORCH_VERSION 2.11.0)
if(DEFINED ENV{RETORT_CACHE})
  set(_cache $ENV{RETORT_CACHE})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(_cache $ENV{XDG_CACHE_HOME}/retort)
else()
  set(_cache $ENV{HOME}/.cache/retort)
endif()
set(
  RETORT_TORCH_SITE
  "${_cache}/torch-${RETORT_TORCH_VERSION}"
  CACHE PATH
  "site-packages folder that holds the torch wheel"
)
if(NOT EXISTS "${RETORT_TORCH_SITE}/torch/lib/libtorch_cpu.so")
  message(
    FATAL_ERROR
    "RETORT_TORCH_SITE='${RETORT_TORCH_SITE}' holds no torch/lib/libtorch_cpu.so: run ./dev setup, "
    "or pass -DRETORT_TORCH_SITE=<site-packages with torch ${RETORT_TORCH_VERSION}>"
  )
endif()
set(_torch ${RETORT_TORCH_SITE}/torch)
add_library(retort_torch INTERFACE)
target_include_directories(
  retort_torch
  SYSTEM
  INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include
)
target_compile_definitions(
  retort_torch
  INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE
)
target_link_libraries(
  retort_torch
  INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so ${_torch}/lib/libgomp.so.1
)
target_link_options(retort_torch INTERFACE -Wl,--allow-shlib-undefined)
