// This file is compiled with -march=x86-64-v3 where that exists.
#include "models/generation/cpu_kernels/vector_kernels_body.h"

namespace retort::models {
extern const VectorKernels kAvx2Kernels;
const VectorKernels kAvx2Kernels = kKernels;
}  // namespace retort::models
