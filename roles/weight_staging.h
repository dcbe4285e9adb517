// Weights that have arrived but are not in use yet, and the order in which they travel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "roles/generator_methods.h"

namespace retort::roles {

// The parameters of `decoder` cut into buckets of at most `bucket_bytes` (a single row may be larger), in the decoder's order; a
// parameter that does not fit into what is left of a bucket is cut between rows. No tensor is copied. The same for every call on
// a decoder of the same shape.
std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes);
// Fills in the checksums of one bucket's parts and returns the running checksum of all parts so far.
uint64_t seal(WeightBucket& bucket, uint64_t running);
// SHA-256 over models::describe_function and the names, shapes and dtypes of the parameters, 16 hex digits.
std::string parameters_hash(const models::Decoder& decoder);

// The receiving end. Memory: one more copy of the weights, from the first bucket to apply(). Threads: one.
class WeightStaging {
 public:
  explicit WeightStaging(models::Decoder& decoder);
  // Buckets may arrive in any order. A newer version throws what is staged of an older one away. kCorrupt for a part whose
  // checksum, name, shape or dtype is wrong, kMismatch for a version that is not newer than `in_use`.
  void add(WeightBucket bucket, uint64_t in_use);
  // Checks that all is there: kCorrupt naming what is missing, or a checksum that is not the sender's. Returns the checksum.
  uint64_t check(const CommitWeights& commit) const;
  // Makes what is staged the decoder's parameters and forgets it: whole parameters without a copy, so that whoever keeps addresses
  // of them must look again. check() must have passed.
  void apply();

 private:
  models::Decoder& decoder_;
  std::map<std::string, at::Tensor> parameters_;
  uint64_t version_ = 0;
  std::map<int64_t, WeightBucket> buckets_;
};

}  // namespace retort::roles
