// The student's side of a teacher: handshake, head, and requests that are in flight while the student computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/packed.h"
#include "models/text/tokenizer.h"
#include "roles/teacher_methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// A request on its way; take it back with TeacherClient::receive.
struct PendingPayload {
  ForwardRequest request;
  size_t replica = 0;
  rpc::Future<Payload> reply;
};

// All replicas of one teacher role. Requests go to replica (request_id mod replicas); when a replica is lost, its requests are sent
// again to the next one that lives, which computes the same bits. Threads: compute.
class TeacherClient {
 public:
  struct Options {
    std::string role;                   // "teacher"
    std::vector<std::string> replicas;  // peer names, already connected: "teacher/0", "teacher/1"
    PayloadSpec spec;                   // common_vocab is filled in by the handshake
    std::chrono::milliseconds timeout{120'000};
    int64_t student_vocab_rows = 0;
    bool weights_fingerprint = false;  // ask for TeacherInfo::weights_fingerprint
  };
  // Handshake with every replica: fingerprints over the ids both tokenizers know must agree (kMismatch showing both), replicas must
  // agree with each other; fetches the head when the payload is hidden states.
  TeacherClient(rpc::Agent& agent, Options options, const models::Tokenizer& student_tokenizer);

  const TeacherInfo& info() const { return info_; }
  const PayloadSpec& spec() const { return options_.spec; }
  const at::Tensor& head_weight() const { return head_; }  // defined for hidden_states: [Vt, Ht]
  const std::string& role() const { return options_.role; }

  // Sends tokens (as int32) and the positions wanted; returns at once.
  PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens, const at::Tensor& positions);
  // Waits, checks the label, fails over. kPeerLost when no replica is left. `waited` (optional) gets the seconds spent waiting.
  Payload receive(PendingPayload pending, double* waited = nullptr);

 private:
  void dispatch(PendingPayload& pending);
  rpc::Agent& agent_;
  Options options_;
  TeacherInfo info_;
  at::Tensor head_;
  std::vector<bool> lost_;
};

}  // namespace retort::roles
