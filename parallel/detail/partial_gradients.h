// Sums gradients of which each rank that holds the slice has a part only, before the data-parallel
// reduction.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/grad_buckets.h"

namespace retort::parallel::detail {

// Throws kInvalidArgument if the parameter needs a group that is not there, or if its number of
// copies does not divide the size of the group.
void check_partial(const NamedParameter& parameter, const GradBuckets::Options& options);
// True if this rank's gradient of the parameter lacks something that another rank has.
bool is_partial(const NamedParameter& parameter, const GradBuckets::Options& options);

// Sums the copies' gradients over options.tp, then the tied ones over options.embedding, in place
// in `main_grads`. Collectives: one all-reduce on tp for each number of copies that occurs, one on
// the embedding group for each tied parameter.
void sum_partial_gradients(const std::vector<NamedParameter>& parameters,
                           const std::vector<at::Tensor>& main_grads,
                           const GradBuckets::Options& options);

}  // namespace retort::parallel::detail
