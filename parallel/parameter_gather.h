// The parameters of a sharded optimizer: updated in parts, whole again before their next use.
#pragma once

#include <cstddef>
#include <memory>

#include "parallel/grad_buckets.h"

namespace retort::parallel {

// Moves the parameters of sharded GradBuckets into one flat buffer for each bucket, laid out like
// the bucket (padding included) and in the parameters' dtype: their tensors stay the same objects,
// with their hooks, but get new memory. Take views of parameters (packed weights) after this. After
// an update of its parts (AdamW::step) each rank sends them to all others:
//   optimizer.step(buckets, rate);
//   gather.launch();                    // returns at once
//   gather.wait(first, last);           // in the next forward, before these parameters are read
// Between launch() and wait() the parameters hold a mixture of old and new values: call wait()
// before anything else reads them (checkpoints, pushes of weights, evaluation). Without sharding it
// moves nothing and every call returns at once. Collectives: launch() is one all-gather on dp for
// each bucket, those that forward needs first before the others; every rank must call. Bytes sent
// by a rank: (dp - 1) / dp of the parameters' bytes. Devices: that of the buckets; on a CUDA device
// wait() makes the current stream wait, not the thread. Threads: compute. Errors: wait() rethrows
// the group's; launch() waits for what an earlier one left.
class ParameterGather {
 public:
  // The buckets must live longer. kInvalidArgument if a bucket mixes dtypes (GradBuckets makes none
  // that does).
  explicit ParameterGather(const GradBuckets& buckets);
  ~ParameterGather();
  ParameterGather(const ParameterGather&) = delete;

  void launch();
  void wait();                           // for all parameters
  void wait(size_t first, size_t last);  // for parameters [first, last) in the order of GradBuckets
  bool pending() const;                  // something is still to be waited for

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
