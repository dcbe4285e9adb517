// The student's side of a role that scores completions.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/future.h"
#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/teacher/frozen_replicas.h"
#include "rpc/agent.h"

namespace retort::roles {

// All replicas of one role: requests of a few sequences each go round among them, all of a batch at
// once (as far as rpc.max_inflight_calls goes); those of a lost replica go to the next one that
// lives, or wait for one that comes back. Threads: one at a time, but for stop().
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
  void stop();

 private:
  struct Pending {
    RewardQuestion question;
    FrozenReplicas::Sent sent;
    Future<RewardAnswer> answer;
  };
  void send(Pending& pending, size_t replica);
  RewardAnswer receive(Pending& pending);

  rpc::Agent& agent_;
  const std::chrono::milliseconds timeout_;
  FrozenReplicas replicas_;
  uint64_t last_request_ = 0;
  std::mutex mutex_;  // of what follows
  bool stopped_ = false;
  std::function<void()> cancel_;  // the answer that is waited for
};

}  // namespace retort::roles
