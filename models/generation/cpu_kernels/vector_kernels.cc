// Has the portable functions, and chooses between them and those for wider vectors.
#include "models/generation/cpu_kernels/vector_kernels.h"

#include "models/generation/cpu_kernels/vector_kernels_body.h"

namespace retort::models {

#if defined(__x86_64__)
extern const VectorKernels kAvx512Kernels, kAvx2Kernels;

const VectorKernels* kernels_of(VectorWidth width) {
  // The kernels are compiled with -march=x86-64-v4 and -v3, so the processor must have what these
  // use.
  switch (width) {
    case VectorWidth::kPortable: return &kKernels;
    case VectorWidth::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                     __builtin_cpu_supports("bmi2")
                 ? &kAvx2Kernels
                 : nullptr;
    case VectorWidth::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("avx512cd")
                 ? &kAvx512Kernels
                 : nullptr;
  }
  return nullptr;
}
#else
const VectorKernels* kernels_of(VectorWidth width) {
  return width == VectorWidth::kPortable ? &kKernels : nullptr;
}
#endif

const VectorKernels& vector_kernels() {
  if (const VectorKernels* kernels = kernels_of(VectorWidth::kAvx512)) return *kernels;
  if (const VectorKernels* kernels = kernels_of(VectorWidth::kAvx2)) return *kernels;
  return kKernels;
}

uint64_t noise_key(uint64_t seed, uint64_t a, uint64_t b) { return mix(mix(mix(seed) ^ a) ^ b); }

}  // namespace retort::models
