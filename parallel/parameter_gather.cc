#include "parallel/parameter_gather.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/sizes.h"
#include "base/thread_checker.h"

namespace retort::parallel {

struct ParameterGather::Impl {
  struct Bucket {
    at::Tensor flat;  // every parameter of the bucket at its place
    at::Tensor own;   // this rank's part
    Work work;
    bool pending = false;
  };
  const GradBuckets& grads;
  std::vector<Bucket> buckets;  // empty: nothing is sharded
  ThreadChecker compute_thread;

  explicit Impl(const GradBuckets& g) : grads(g) {
    if (!grads.sharded()) return;
    buckets.resize(to_size(grads.num_buckets()));
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < grads.size(); ++i)
      move(i);
  }

  // Gives parameter i its place in the flat buffer of its bucket.
  void move(size_t i) {
    at::Tensor value = grads.parameter(i).value;  // the same object as the model's
    const GradBuckets::Place place = grads.place(i);
    Bucket& bucket = buckets[place.bucket];

    // The first parameter of a bucket settles its dtype and device.
    if (!bucket.flat.defined()) {
      const int64_t numel = grads.bucket_numel(place.bucket);
      const int64_t part = numel / grads.dp().size();
      bucket.flat = at::zeros({numel}, value.options().requires_grad(false));
      bucket.own = bucket.flat.narrow(0, grads.dp().rank() * part, part);
    }
    if (value.scalar_type() != bucket.flat.scalar_type())
      throw Error(ErrorCode::kInvalidArgument,
                  "parameter '" + grads.parameter(i).name +
                      "' has another dtype than the others of its bucket");

    // set_data() gives the model's own tensor its new memory.
    const at::Tensor view = bucket.flat.narrow(0, place.offset, value.numel()).view(value.sizes());
    view.copy_(value.detach());
    value.set_data(view);
  }

  void wait(Bucket& bucket) {
    if (!bucket.pending) return;
    bucket.work.wait();
    bucket.work = {};
    bucket.pending = false;
  }
};

ParameterGather::ParameterGather(const GradBuckets& buckets)
    : impl_(std::make_unique<Impl>(buckets)) {}

ParameterGather::~ParameterGather() = default;

void ParameterGather::launch() {
  impl_->compute_thread.check("ParameterGather::launch()");
  wait();
  // The last bucket goes first: the last ones hold the late parameters of all layers, then the
  // first layers, with which a forward begins.
  for (size_t b = impl_->buckets.size(); b-- > 0;) {
    Impl::Bucket& bucket = impl_->buckets[b];
    bucket.work = impl_->grads.dp().all_gather_into_async(bucket.flat, bucket.own);
    bucket.pending = true;
  }
}

void ParameterGather::wait() {
  for (size_t b = impl_->buckets.size(); b-- > 0;)
    impl_->wait(impl_->buckets[b]);
}

void ParameterGather::wait(size_t first, size_t last) {
  if (impl_->buckets.empty()) return;
  for (size_t i = first; i < last; ++i)
    impl_->wait(impl_->buckets[impl_->grads.place(i).bucket]);
}

bool ParameterGather::pending() const {
  return std::ranges::any_of(impl_->buckets,
                             [](const Impl::Bucket& bucket) { return bucket.pending; });
}

}  // namespace retort::parallel
