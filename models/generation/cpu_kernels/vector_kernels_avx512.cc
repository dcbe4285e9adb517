// This file is compiled with -march=x86-64-v4 where that exists.
#include "models/generation/cpu_kernels/vector_kernels_body.h"

namespace retort::models {
extern const VectorKernels kAvx512Kernels;
const VectorKernels kAvx512Kernels = kKernels;
}  // namespace retort::models
