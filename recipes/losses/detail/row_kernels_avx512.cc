// The row kernels with 16 lanes; CMakeLists.txt gives this file its instruction set.
#define RETORT_LANES 16
#define RETORT_ISA avx512
#include "recipes/losses/detail/row_kernels_body.h"

namespace retort::losses::detail {

extern const RowKernels kRowKernels_avx512;
constinit const RowKernels kRowKernels_avx512{"avx512", avx512::cross_entropy, avx512::dense,
                                              avx512::top_k};

}  // namespace retort::losses::detail
