// Weights that have arrived but are not in use yet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// The receiving end, of one rank: of the decoder's weights, or of its adapter's if it has one
// (models::Decoder::trained_parameters).
//
// Use: add() ..., check(), then apply() or uncheck(). From a check() that passed until then no
//   bucket is taken, so that what was checked is what is applied.
// Memory: one more copy of what is pushed, from the first bucket to apply(), where it arrives: on
//   the host, or on the decoder's device.
// Threads: add() on any, beside the others; those on compute, which alone touches the decoder.
//   add() reads the values, which takes long, before it takes the lock; whoever else holds it sees
//   whole buckets.
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
  // Makes what was checked the decoder's and forgets it. On a device values are copied into the
  // parameters, which keep their addresses. On the CPU whole parameters take what arrived for their
  // memory, so that whoever keeps addresses of them must look again.
  void apply();
  // Forgets what came from peers that are not `connected`, unless it is checked; false when there
  // is nothing of those. Asks for them while no bucket can be added: one whose sender connected
  // later stays.
  bool forget_lost(const std::function<std::set<std::string>()>& connected);

  // A bucket that is staged; its origin is the peer that pushed it. Any thread.
  std::optional<WeightBucket> find(uint64_t version, int64_t sender, int64_t index) const;

  bool empty() const;
  uint64_t in_use() const;   // version of the last apply(), or 0
  uint64_t checked() const;  // version that waits for apply(), or 0

 private:
  // What this rank has of a parameter of the decoder; it never changes.
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
