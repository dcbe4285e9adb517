#include "recipes/losses/detail/row_kernels.h"

#include <string_view>

namespace retort::losses::detail {

#if defined(__x86_64__)
extern const RowKernels kRowKernels_avx512;
extern const RowKernels kRowKernels_avx2;
#endif
extern const RowKernels kRowKernels_portable;

const RowKernels* row_kernels_named(const char* name) {
  const std::string_view wanted(name);
#if defined(__x86_64__)
  if (wanted == "avx512")
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
               ? &kRowKernels_avx512
               : nullptr;
  if (wanted == "avx2")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kRowKernels_avx2
                                                                           : nullptr;
#endif
  return wanted == "portable" ? &kRowKernels_portable : nullptr;
}

const RowKernels& row_kernels() {
  for (const char* name : {"avx512", "avx2"})
    if (const RowKernels* found = row_kernels_named(name)) return *found;
  return kRowKernels_portable;
}

}  // namespace retort::losses::detail
