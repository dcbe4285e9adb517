// Has the portable functions, and chooses between them and those for wider vectors.
#include "models/generation/cpu_kernels/vector_kernels.h"

#include "models/generation/cpu_kernels/vector_kernels_body.h"

namespace retort::models {

#if defined(__x86_64__)
extern const VectorKernels kAvx512Kernels, kAvx2Kernels;

const VectorKernels& vector_kernels() {
  // The kernels are compiled with -march=x86-64-v4 and -v3, so the processor must have what these
  // use.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd")) {
    return kAvx512Kernels;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    return kAvx2Kernels;
  return kKernels;
}
#else
const VectorKernels& vector_kernels() { return kKernels; }
#endif

const VectorKernels& baseline_kernels() { return kKernels; }

uint64_t noise_key(uint64_t seed, uint64_t a, uint64_t b) { return mix(mix(mix(seed) ^ a) ^ b); }

}  // namespace retort::models
