// The parameters of a sharded optimizer: updated in parts, whole again before their next use.
#pragma once

#include <cstddef>
#include <memory>

#include "parallel/grad_buckets.h"

namespace retort::parallel {

// After an update of its parts (AdamW::step) each rank sends them to all others. For this the
// parameters of sharded GradBuckets move into one flat buffer for each bucket, in their own dtype
// and laid out like the bucket (padding included). Without sharding nothing moves, and every call
// returns at once.
//
// Use:
//   optimizer.step(buckets, rate);
//   gather.launch();                    // returns at once
//   gather.wait(first, last);           // in the next forward, before these parameters are read
//   Between launch() and wait() the parameters hold a mixture of old and new values: call wait()
//   before anything else reads them (checkpoints, pushes of weights, evaluation).
//
// Collectives: launch() is one all-gather on dp for each bucket, those that forward needs first
//   before the others; every rank must call. A rank sends (dp - 1) / dp of the parameters' bytes.
// Errors: wait() rethrows the group's. launch() first waits for what an earlier one left.
// Devices: that of the buckets; on a CUDA device wait() makes the current stream wait, not the
//   thread.
// Threads: compute.
class ParameterGather {
 public:
  // Moves the parameters: their tensors stay the same objects, with their hooks, but get new
  // memory, so take views of them (packed weights) afterwards. `buckets` must live longer.
  // kInvalidArgument if a bucket mixes dtypes, which no bucket of GradBuckets does.
  explicit ParameterGather(const GradBuckets& buckets);
  ~ParameterGather();
  ParameterGather(const ParameterGather&) = delete;

  void launch();
  void wait();                           // for all parameters
  void wait(size_t first, size_t last);  // for parameters [first, last) in the order of GradBuckets
  bool pending() const;                  // whether something is still to be waited for

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
