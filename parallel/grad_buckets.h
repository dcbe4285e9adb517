// Data-parallel gradients: contiguous fp32 main_grad buckets, reduced while backward runs, always
// in bucket order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group.h"
#include "parallel/parameter.h"

namespace retort::parallel {

// Owns one fp32 buffer (4 bytes for each parameter element) that every parameter's gradient is
// accumulated into: a post-accumulate hook adds param.grad to its main_grad slice and drops
// param.grad. Buckets are filled from the last parameter to the first (backward order) and their
// all-reduce (SUM, group `dp`) is launched in fixed index order, in the last micro-batch of a step
// only.
//   buckets.begin_step();
//   for each micro-batch: buckets.set_last_micro_batch(i == n - 1); loss.backward();
//   // launches what is left (parameters without a gradient count as zero), waits
//   buckets.finish();
//   buckets.scale(1.0 / global_token_count);
//   double norm = buckets.norm();          // the same on all ranks
//
// Late buckets, the last ones, hold the parameters whose gradient on this rank is a part of the
// gradient: copies with shard.partial_gradient and those with shard.tied_stages. They are never
// sent before finish(), which first sums the copies over `tp`, then the tied ones over `embedding`,
// and then reduces over `dp` as for all others.
//
// With `shard` (ZeRO-1) every bucket is padded to a multiple of dp's size and reduce-scattered:
// rank r of dp gets the sums of part r of each bucket, its elements part(i) of parameter i. The
// rest of main_grad(i) is undefined after finish().
//
// Collectives: one all-reduce (with `shard`: one reduce-scatter) for each bucket on `dp`; in
// finish() one all-reduce on `tp` for each number of copies that a partial gradient has, and one on
// `embedding` for each tied parameter. Every dp rank must run the same number of steps; all tp
// ranks must hold their partial gradients in the same order and sizes, the embedding ranks their
// tied ones. Memory beside the buffer: with `shard` what arrives, at most that of 4 buckets; in
// finish() the copies' sum. Errors: kInvalidArgument for a parameter that is no leaf with
// requires_grad, has a hook already or is on another device than the first, for one that needs a
// group that is not there, for calls out of order, and for a gradient that arrives after its bucket
// was sent; finish() and backward() rethrow the groups' errors. Devices: the CPU or one CUDA
// device, the same for all parameters; the buffer lies there too. There only norm() and
// non_finite() wait for the device, once each, and what dp sums need not have the same bits in a
// repeated run. Threads: compute; hooks run on the autograd thread of the same backward call (on a
// device: that device's, while the caller waits).
class GradBuckets {
 public:
  struct Options {
    int64_t bucket_bytes = 40 << 20;  // of fp32 gradients
    bool overlap = true;              // false: all reduces are launched in finish() (same numbers)
    Group* tp = nullptr;              // that the parameters are split over; null: none is
    Group* embedding = nullptr;       // that ties parameters of two stages; null: none is tied
    // the ranks that hold one replica of the model, for norm(); null: this one
    Group* mp = nullptr;
    bool shard = false;  // each dp rank gets the sums of its part only
  };
  // Elements [begin, end) of a parameter (row-major); empty: begin == end.
  struct Part {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // Where a parameter begins.
  struct Place {
    size_t bucket = 0;
    int64_t offset = 0;  // in elements of the bucket
  };

  GradBuckets(std::vector<NamedParameter> parameters, Group& dp, Options options);
  ~GradBuckets();
  GradBuckets(const GradBuckets&) = delete;

  void begin_step();  // zeroes the buffer
  void set_last_micro_batch(bool last);
  void finish();
  void scale(double factor);  // what this rank has the sums of
  // 2-norm over all elements of the model, computed per parameter in parameter order then combined
  // in fp64 (deterministic; a device adds the squares of a parameter in another order than the
  // CPU). Slices that are not counted, or that another dp rank has the sums of, are left to the
  // ranks that do count them. Collectives: an all-reduce of one double on `mp`, with `shard` one on
  // `dp` before it: every rank must call.
  double norm() const;
  // Name and norm of each parameter whose gradient is not finite in what this rank has the sums of
  // (it may be another rank's).
  std::vector<std::string> non_finite() const;

  size_t size() const;
  const NamedParameter& parameter(size_t i) const;
  at::Tensor main_grad(size_t i) const;  // fp32 view into the buffer, shape of the parameter
  // that this rank has the sums of: all of it without `shard`
  Part part(size_t i) const;
  at::Tensor main_grad_part(size_t i) const;  // those elements, one dimension, a view
  int64_t num_buckets() const;                // the late ones included
  int64_t num_late_buckets() const;
  int64_t bucket_numel(size_t bucket) const;  // with the padding
  Place place(size_t i) const;
  bool sharded() const;  // options.shard, and dp has more than one rank
  Group& dp() const;

  struct Impl;  // named by the hooks

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
