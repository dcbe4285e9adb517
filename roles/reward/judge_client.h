// The student's side of a role that says what it thinks of completions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "roles/reward/methods.h"
#include "roles/reward/replicated_calls.h"

namespace retort::roles {

// Asks the role's replicas a few texts at a time. Threads: one at a time, but for stop().
class JudgeClient {
 public:
  static constexpr size_t kTextsPerRequest = 8;

  // Shakes hands with every replica.
  JudgeClient(rpc::Agent& agent, FrozenReplicas::Options options);

  struct Said {
    std::string text;
    bool cut = false;  // it did not end by itself
  };
  // Returns the role's answer to each text. Errors: the role's own; kPeerLost when no replica is
  // left; kMismatch and kCorrupt for an answer that cannot be.
  std::vector<Said> ask(std::vector<std::string> texts, int64_t max_new_tokens);
  // Ends an ask() that waits, and all later ones, with kCancelled. Any thread.
  void stop() { calls_.stop(); }

 private:
  ReplicatedCalls<JudgeQuestion, JudgeAnswer> calls_;
};

}  // namespace retort::roles
