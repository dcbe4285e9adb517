// Data-parallel gradients: contiguous fp32 main_grad buckets, reduced while backward runs, always in bucket order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/group.h"
#include "parallel/parameter.h"

namespace retort::parallel {

// Owns one fp32 buffer (4 bytes for each parameter element) that every parameter's gradient is accumulated into:
// a post-accumulate hook adds param.grad to its main_grad slice and drops param.grad. Buckets are filled from the last
// parameter to the first (backward order) and their all-reduce (SUM, group `dp`) is launched in fixed index order, in the
// last micro-batch of a step only.
//   buckets.begin_step();
//   for each micro-batch: buckets.set_last_micro_batch(i == n - 1); loss.backward();
//   buckets.finish();                      // launches what is left (parameters without a gradient count as zero), waits
//   buckets.scale(1.0 / global_token_count);
//   double norm = buckets.norm();          // local: after finish() all ranks hold equal sums
// Collectives: one all-reduce for each bucket on `dp`; every dp rank must run the same number of steps.
// Errors: kInvalidArgument for a parameter that is no CPU leaf with requires_grad or has a hook already, for calls out of
// order, and for a gradient that arrives after its bucket was sent; finish() and backward() rethrow the group's errors.
// Threads: compute; hooks run on the autograd thread of the same backward call.
class GradBuckets {
 public:
  struct Options {
    int64_t bucket_bytes = 40 << 20;  // of fp32 gradients
    bool overlap = true;              // false: all reduces are launched in finish() (same numbers)
  };
  GradBuckets(std::vector<NamedParameter> parameters, Group& dp, Options options);
  ~GradBuckets();
  GradBuckets(const GradBuckets&) = delete;

  void begin_step();  // zeroes the buffer
  void set_last_micro_batch(bool last);
  void finish();
  void scale(double factor);
  // 2-norm over all elements, computed per parameter in parameter order then combined in fp64 (deterministic).
  double norm() const;
  // Name and norm of each parameter whose gradient is not finite.
  std::vector<std::string> non_finite() const;

  size_t size() const;
  const NamedParameter& parameter(size_t i) const;
  at::Tensor main_grad(size_t i) const;  // fp32 view into the buffer, shape of the parameter
  int64_t num_buckets() const;

  struct Impl;  // named by the hooks

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
