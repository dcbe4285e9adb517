// The row kernels with 4 lanes; CMakeLists.txt gives this file its instruction set.
#define RETORT_LANES 4
#define RETORT_ISA portable
#include "recipes/losses/detail/row_kernels_body.h"

namespace retort::losses::detail {

extern const RowKernels kRowKernels_portable;
constinit const RowKernels kRowKernels_portable{"portable", portable::cross_entropy,
                                                portable::dense, portable::top_k};

}  // namespace retort::losses::detail
