// The student's side of a role that scores completions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/reward/replicated_calls.h"

namespace retort::roles {

// Asks the role's replicas about a few sequences at a time. Threads: one at a time, but for stop().
class RewardClient {
 public:
  static constexpr size_t kSequencesPerRequest = 8;

  // Shakes hands with every replica.
  RewardClient(rpc::Agent& agent, FrozenReplicas::Options options,
               const models::Tokenizer& student);

  struct Sequence {
    std::span<const int32_t> prompt, completion;
  };
  // One finite number for each sequence: the model's number `label`. Errors: the role's own;
  // kPeerLost when no replica is left; kMismatch and kCorrupt for an answer that cannot be.
  std::vector<double> score(const std::vector<Sequence>& sequences, int64_t label);
  // Ends a score() that waits, and all later ones, with kCancelled. Any thread.
  void stop() { calls_.stop(); }

 private:
  ReplicatedCalls<RewardQuestion, RewardAnswer> calls_;
};

}  // namespace retort::roles
