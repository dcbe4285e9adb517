// A model's weights as a sender has them: cut into buckets, sealed, with what commits them.
#pragma once

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/decoder/decoder.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"

namespace retort::roles {

inline bool equal_weights(const models::Decoder& a, const models::Decoder& b) {
  const auto left = a.parameters(), right = b.parameters();
  return std::equal(
      left.begin(), left.end(), right.begin(), right.end(),
      [](const auto& x, const auto& y) { return x.name == y.name && at::equal(x.value, y.value); });
}

struct Sealed {
  std::vector<WeightBucket> buckets;
  CommitWeights commit;
};
// With values of their own, so that a test may damage them.
inline Sealed sealed(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes) {
  Sealed all{.buckets = make_weight_buckets(decoder, weight_slices(decoder), version, bucket_bytes),
             .commit = {.version = version, .receipts = {WeightReceipt{}}}};
  WeightReceipt& receipt = all.commit.receipts[0];
  for (WeightBucket& bucket : all.buckets) {
    receipt.checksum = seal(bucket, receipt.checksum);
    for (WeightPart& part : bucket.parts)
      part.values = part.values.clone();
  }
  receipt.buckets = static_cast<int64_t>(all.buckets.size());
  return all;
}

}  // namespace retort::roles
