// The row kernels with 8 lanes; CMakeLists.txt gives this file its instruction set.
#define RETORT_LANES 8
#define RETORT_ISA avx2
#include "recipes/losses/detail/row_kernels_body.h"

namespace retort::losses::detail {

extern const RowKernels kRowKernels_avx2;
constinit const RowKernels kRowKernels_avx2{"avx2", avx2::cross_entropy, avx2::dense, avx2::top_k};

}  // namespace retort::losses::detail
