// Weights that have arrived but are not in use yet, and how they are cut into what travels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// What this process holds of each parameter, in the decoder's order.
std::vector<WeightSlice> weight_slices(const models::Decoder& decoder);

// What of the slices that `decoder` counts (parallel::ParameterShard::counted) lies within `held`,
// a receiver's slices, cut into buckets of at most `bucket_bytes` (a single row may be larger), in
// the decoder's order; a parameter that does not fit into what is left of a bucket is cut between
// rows. No tensor is copied. The same for every call on decoders of the same shape and placement.
// Every element of the model is counted on one rank of a trainer's replica: together their buckets
// for one receiver hold each of its elements once. kMismatch when a parameter has another shape
// there.
std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder,
                                              const std::vector<WeightSlice>& held,
                                              uint64_t version, int64_t bucket_bytes,
                                              int64_t sender = 0);
// Fills in the checksums of one bucket's parts and returns the running checksum of all parts so
// far. Columns of a matrix are copied here, so that they are contiguous. Weights on a device are
// copied to pinned host memory, or stay there with `on_device`. A checksum is computed where the
// values lie, by another rule on devices than on the host: nothing but numbers comes to the host.
uint64_t seal(WeightBucket& bucket, uint64_t running, bool on_device = false);
// What a replica's checksum must be: over its ranks' in order, each over its receipts' in the order
// of senders.
uint64_t weights_checksum(const std::vector<WeightReceipt>& receipts);
// The same from the ranks' checksums (WeightStaging::check).
uint64_t weights_checksum(const std::vector<uint64_t>& of_ranks);
// SHA-256 over models::describe_function, which decides the names and shapes of the whole model's
// parameters, and their dtype; 16 hex digits. The same for every placement.
std::string parameters_hash(const models::Decoder& decoder);

// The receiving end, of one rank. Memory: one more copy of the weights, from the first bucket to
// apply(), where they arrive: on the host, or on the decoder's device. Threads: one.
class WeightStaging {
 public:
  explicit WeightStaging(models::Decoder& decoder);
  // Buckets may arrive in any order; `from` is the peer that sent this one. A newer version throws
  // what is staged of an older one away, and a bucket that is sent again takes the place of the
  // first. A bucket that is refused changes nothing: kCorrupt for a part whose checksum, name,
  // place or dtype is wrong; kMismatch for a version that is not newer than `in_use`, or older than
  // what is staged.
  void add(WeightBucket bucket, uint64_t in_use, const std::string& from = {});
  // Checks that all that this rank was sent is there, else kUnavailable: a sender may be about to
  // send it again. Checks that it holds every element of every parameter once: kCorrupt naming what
  // is missing or came twice, or a checksum that is not the sender's. Returns the checksum over its
  // receipts.
  uint64_t check(const CommitWeights& commit) const;
  // Makes what is staged the decoder's parameters and forgets it: whole parameters without a copy
  // if they arrived on its device, so that whoever keeps addresses of them must look again. check()
  // must have passed.
  void apply();
  // Forgets what is staged, of whatever version.
  void clear();
  // Forgets what came from peers that are not `connected`; false when there is nothing of those.
  bool forget_lost(const std::set<std::string>& connected);
  bool empty() const { return buckets_.empty(); }

 private:
  struct Own {
    at::Tensor value;
    WeightSlice slice;
  };
  void check_part(const WeightPart& part, uint64_t version) const;
  void check_complete() const;

  models::Decoder& decoder_;
  std::map<std::string, Own> parameters_;
  struct Staged {
    WeightBucket bucket;
    std::string from;  // the peer
  };
  uint64_t version_ = 0;                                   // of what is staged, or 0
  std::map<std::pair<int64_t, int64_t>, Staged> buckets_;  // by sender and index
};

}  // namespace retort::roles
