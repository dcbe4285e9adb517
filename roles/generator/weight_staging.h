// Weights that have arrived but are not in use yet, and how they are cut into what travels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
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
// The same into memory that the bucket has for itself: the decoder may change then. Copied and summed
// up in one pass. Where `earlier`, a bucket of the same place that was made so, has memory of the
// same shape which nobody else holds, that is used again: new pages cost more than the copy.
uint64_t seal_copy(WeightBucket& bucket, uint64_t running, bool on_device,
                   const WeightBucket* earlier);
// What a replica's checksum must be: over its ranks' in order, each over its receipts' in the order
// of senders.
uint64_t weights_checksum(const std::vector<WeightReceipt>& receipts);
// The same from the ranks' checksums (WeightStaging::check).
uint64_t weights_checksum(const std::vector<uint64_t>& of_ranks);
// SHA-256 over models::describe_function, which decides the names and shapes of the whole model's
// parameters, and their dtype; 16 hex digits. The same for every placement.
std::string parameters_hash(const models::Decoder& decoder);

// The receiving end, of one rank.
//
// Use: add() ..., check(), then apply() or uncheck(). From a check() that passed until then no bucket
//   is taken, so that what was checked is what is applied.
// Memory: one more copy of the weights, from the first bucket to apply(), where they arrive: on the
//   host, or on the decoder's device.
// Threads: add() on any, beside the others; those on compute, which alone touches the decoder. add()
//   reads the values, which takes long, before it takes the lock; whoever else holds it sees whole
//   buckets.
class WeightStaging {
 public:
  explicit WeightStaging(models::Decoder& decoder);
  // Buckets may arrive in any order; `from` is the peer that sent this one. A newer version throws
  // what is staged of an older one away, and a bucket that is sent again takes the place of the
  // first. A bucket that is refused changes nothing: kCorrupt for a part whose checksum, name,
  // place or dtype is wrong; kMismatch for a version that is not newer than that in use, or older
  // than what is staged; kUnavailable while checked weights wait.
  void add(WeightBucket bucket, const std::string& from = {});
  // Checks that all that this rank was sent is there, else kUnavailable: a sender may be about to
  // send it again. Checks that it holds every element of every parameter once: kCorrupt naming what
  // is missing or came twice, or a checksum that is not the sender's. Returns the checksum over its
  // receipts.
  uint64_t check(const CommitWeights& commit);
  // What is staged is not checked any more, if it was.
  void uncheck();
  // Makes what was checked the decoder's parameters and forgets it: whole parameters without a copy
  // if they arrived on its device, so that whoever keeps addresses of them must look again.
  void apply();
  // Forgets what came from peers that are not `connected`, unless it is checked; false when there is
  // nothing of those. Asks for them while no bucket can be added: one whose sender connected later
  // stays.
  bool forget_lost(const std::function<std::set<std::string>()>& connected);

  bool empty() const;
  uint64_t in_use() const;   // version of the last apply(), or 0
  uint64_t checked() const;  // version that waits for apply(), or 0

 private:
  // Of a parameter of the decoder; never changes.
  struct Own {
    at::ScalarType dtype;
    WeightSlice slice;
  };
  struct Staged {
    WeightBucket bucket;
    std::string from;  // the peer
  };
  using Buckets = std::map<std::pair<int64_t, int64_t>, Staged>;  // by sender and index

  void check_part(const WeightPart& part, uint64_t version) const;
  void check_due(uint64_t version) const;
  void check_complete() const;

  models::Decoder& decoder_;
  std::map<std::string, Own> parameters_;

  mutable std::mutex mutex_;  // of all below
  uint64_t in_use_ = 0, checked_ = 0;
  uint64_t version_ = 0;  // of what is staged, or 0
  Buckets buckets_;
};

}  // namespace retort::roles
