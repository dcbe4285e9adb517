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

// Owns one fp32 buffer into which every parameter's gradient is accumulated: a post-accumulate hook
// adds param.grad to its slice, main_grad, and drops param.grad. A backward pass may also add to
// the slice by itself (gradient_sink.h). The slices of neighbouring
// parameters form buckets, filled in backward order (from the last parameter to the first). In the
// last micro-batch of a step each full bucket is summed over `dp`, always in index order.
//
// Backward starts sums and waits for none, so that no rank waits in it for a gradient that another
// one does not have. Such a rank sends the bucket behind its backward, where the parameter counts
// as zero.
//
// Use:
//   buckets.begin_step();
//   for each micro-batch: buckets.set_last_micro_batch(i == n - 1); loss.backward();
//   buckets.end_last_backward();           // launches what backward left, waits for nothing
//   buckets.finish();                      // launches the rest, waits
//   buckets.scale(1.0 / global_token_count);  // noted, applied by the optimizer
//   double norm = buckets.norm();             // of what is scaled, the same on all ranks
//
// Collectives: one all-reduce (with Options::shard one reduce-scatter) for each bucket on `dp`; in
//   finish() one all-reduce on `tp` for each number of copies that a partial gradient has, and one
//   on `embedding` for each tied parameter. Every dp rank must run the same number of steps. All tp
//   ranks must hold their partial gradients in the same order and sizes, the embedding ranks their
//   tied ones.
// Memory: 4 bytes for each parameter element. Beside that: with Options::shard what arrives, at
//   most that of 4 buckets, so that in host memory backward sends the first 4 and finish() the
//   others (NCCL holds nothing: there all are sent in backward); in finish() the sum of the copies.
// Errors: kInvalidArgument for a parameter that is no leaf with requires_grad, has a hook already
//   or is on another device than the first, for one that needs a group that is not there, for calls
//   out of order, and for a gradient that arrives after its bucket was sent. finish() and
//   backward() rethrow the groups' errors.
// Devices: the CPU or one CUDA device, the same for all parameters; the buffer lies there too. On a
//   device only norm() and non_finite() wait for it, once each, and the sums over dp need not have
//   the same bits in a repeated run.
// Threads: compute. Hooks run on the autograd thread of the same backward call (on a device: that
//   device's, while the caller waits).
class GradBuckets {
 public:
  struct Options {
    int64_t bucket_bytes = 40 << 20;  // of fp32 gradients
    // false: every bucket is sent in finish(). The numbers are the same.
    bool overlap = true;
    Group* tp = nullptr;         // the group that the parameters are split over; null: none is
    Group* embedding = nullptr;  // the group that ties parameters of two stages; null: none is tied
    Group* mp = nullptr;  // the ranks of one replica of the model, for norm(); null: this one
    // ZeRO-1: every bucket is padded to a multiple of dp's size and reduce-scattered. Rank r of dp
    // gets the sums of part r of each bucket: the elements part(i) of parameter i. The rest of
    // main_grad(i) is undefined after finish().
    bool shard = false;
  };
  // Elements [begin, end) of a parameter (row-major); empty: begin == end.
  struct Part {
    int64_t begin = 0;
    int64_t end = 0;
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

  // The first gradient of a parameter takes the place of the last step's, which is undefined until
  // then.
  void begin_step();
  // Says whether the next backward is the step's last: only then are full buckets sent.
  void set_last_micro_batch(bool last);
  // Sends what the last backward would have sent if every parameter had got a gradient. Behind it
  // all ranks of dp have started the same sums, so that each may go on to collectives of other
  // groups with the same ranks; without it finish() has to be the next one.
  void end_last_backward();
  // Sends what is left, where a parameter without a gradient counts as zero, and waits for all.
  //
  // The late buckets, which are the last ones, are never sent before. They hold the parameters of
  // which this rank's gradient is a part only: copies with shard.partial_gradient and those with
  // shard.tied_stages. finish() first sums the copies over `tp`, then the tied ones over
  // `embedding`, and then reduces over `dp` as for all others.
  void finish();
  // Multiplies what this rank has the sums of, without a pass over it: norms count the factor, and
  // the optimizer applies it where it reads each gradient (AdamW::step). main_grad() has the sums
  // as they are, until scale_applied() says otherwise.
  void scale(double factor);
  double pending_scale() const;  // what main_grad() is still to be multiplied with
  void scale_applied();          // by who has multiplied it
  // 2-norm over all elements of the model: the squares are summed for each parameter, then in the
  // order of the parameters, in fp64. The order is fixed, but a device adds the squares of a
  // parameter in another one than the CPU. Slices that are not counted, or that another dp rank has
  // the sums of, are left to the ranks that do count them.
  //
  // Collectives: an all-reduce of one double on `mp`, with `shard` one on `dp` before it: every
  // rank must call.
  double norm() const;
  // The same of groups of parameters: group_of[i] < num_groups is that of parameter i. Collectives:
  // as norm(), of num_groups doubles.
  std::vector<double> norms(const std::vector<size_t>& group_of, size_t num_groups) const;
  // Name and norm of each parameter whose gradient is not finite in what this rank has the sums of
  // (it may be another rank's).
  std::vector<std::string> non_finite() const;

  size_t size() const;
  const NamedParameter& parameter(size_t i) const;
  at::Tensor main_grad(size_t i) const;  // fp32 view into the buffer, shape of the parameter
  // The elements that this rank has the sums of: all of them without `shard`.
  Part part(size_t i) const;
  at::Tensor main_grad_part(size_t i) const;  // those elements, one dimension, a view
  int64_t num_buckets() const;                // with the late ones
  int64_t num_late_buckets() const;
  int64_t bucket_numel(size_t bucket) const;  // with the padding
  Place place(size_t i) const;
  bool sharded() const;  // whether options.shard is set and dp has more than one rank
  Group& dp() const;

  struct Impl;  // public because the hooks name it

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
