#include "parallel/detail/bucket_layout.h"

#include <algorithm>

namespace retort::parallel::detail {
namespace {

constexpr int64_t kGradientBytes = 4;

// Puts parameters into the open bucket, one behind the other.
class Filler {
 public:
  Filler(BucketLayout& layout, int64_t bucket_bytes, int64_t parts)
      : layout_(layout), bytes_(bucket_bytes), parts_(parts) {}

  void add(const NamedParameter& parameter, GradBuckets::Place& place) {
    const int64_t numel = parameter.value.numel();
    const at::ScalarType dtype = parameter.value.scalar_type();
    if (open_ && !fits(numel, dtype)) close();
    if (!open_) layout_.buckets.push_back({.begin = layout_.numel});
    open_ = true;
    dtype_ = dtype;

    place = {.bucket = layout_.buckets.size() - 1, .offset = current().numel};
    current().numel += numel;
    ++current().num_parameters;
  }
  void close() {
    if (!open_) return;
    current().numel = (current().numel + parts_ - 1) / parts_ * parts_;
    layout_.numel += current().numel;
    open_ = false;
  }

 private:
  BucketLayout::Bucket& current() { return layout_.buckets.back(); }
  // Buckets that are split among ranks have one dtype each: their parameters are gathered again in
  // one buffer.
  bool fits(int64_t numel, at::ScalarType dtype) {
    const bool small_enough = (current().numel + numel) * kGradientBytes <= bytes_;
    const bool same_dtype = parts_ == 1 || dtype == dtype_;
    return small_enough && same_dtype;
  }

  BucketLayout& layout_;
  int64_t bytes_, parts_;
  bool open_ = false;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace

BucketLayout lay_out_buckets(const std::vector<NamedParameter>& parameters,
                             const std::vector<char>& late, int64_t bucket_bytes, int64_t parts) {
  BucketLayout layout;
  layout.places.resize(parameters.size());
  Filler filler(layout, bucket_bytes, parts);

  // Parameters that several ranks hold alike lie in buckets that are laid out alike on all of them:
  // the order in which dp's sum of an element is formed may depend on its place, and copies must
  // not drift apart.
  const auto shared = [&](size_t i) {
    return late[i] ? parameters[i].shard.tied_stages : parameters[i].shard.copies > 1;
  };

  for (const bool late_ones : {false, true}) {
    for (const bool shared_ones : {false, true}) {
      // Backward reaches the last parameter first.
      for (size_t i = parameters.size(); i-- > 0;)
        if ((late[i] != 0) == late_ones && shared(i) == shared_ones)
          filler.add(parameters[i], layout.places[i]);
      filler.close();
    }
    if (!late_ones) layout.num_early = layout.buckets.size();
  }
  return layout;
}

GradBuckets::Part part_of(int64_t bucket_numel, int64_t parts, int64_t rank, int64_t offset,
                          int64_t numel) {
  const int64_t k = bucket_numel / parts;
  const int64_t begin = std::clamp<int64_t>(rank * k - offset, 0, numel);
  return {.begin = begin, .end = std::clamp<int64_t>((rank + 1) * k - offset, begin, numel)};
}

}  // namespace retort::parallel::detail
