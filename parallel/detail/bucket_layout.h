// Which bucket each parameter goes to, and where in it. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/grad_buckets.h"

namespace retort::parallel::detail {

struct BucketLayout {
  struct Bucket {
    int64_t begin = 0;  // in elements of the buffer
    int64_t numel = 0;  // with the padding
    int64_t num_parameters = 0;
  };
  std::vector<Bucket> buckets;
  size_t num_early = 0;                    // buckets [num_early, buckets.size()) are late
  std::vector<GradBuckets::Place> places;  // per parameter
  int64_t numel = 0;                       // of the buffer
};

// Fills buckets from the last parameter to the first: first those that are not late (`late`: one
// flag each), then the late ones. In both, the parameters that other ranks of the model hold too
// (copies, tied embeddings) come after the rest, in buckets of their own.
//
// A bucket ends before it exceeds `bucket_bytes` of fp32. With parts > 1 it also ends where the
// dtype changes, and it is padded to a multiple of parts.
BucketLayout lay_out_buckets(const std::vector<NamedParameter>& parameters,
                             const std::vector<char>& late, int64_t bucket_bytes, int64_t parts);

// A padded bucket is cut into `parts` equal ones; a parameter has `numel` elements at `offset` of
// it. Returns which of these lie in part `rank`.
GradBuckets::Part part_of(int64_t bucket_numel, int64_t parts, int64_t rank, int64_t offset,
                          int64_t numel);

}  // namespace retort::parallel::detail
