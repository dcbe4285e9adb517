// The student's side of a teacher: handshake, head, and requests that are in flight while the
// student computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/ops/packed.h"
#include "models/text/tokenizer.h"
#include "parallel/vocab_shard.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/teacher/frozen_replicas.h"
#include "roles/teacher/parts.h"
#include "rpc/agent.h"

namespace retort::roles {

// All replicas of one teacher role. Requests go to replica (request_id mod replicas); when a
// replica is lost, its requests are sent again to the next one that lives, which computes the same
// bits. With `links` a lost replica is asked again once it is back, be it a new process or not, and
// while all are away their requests wait.
//
// With a tensor-parallel group each of its ranks has a client, and all make the same calls: each
// asks for its own part (roles/teacher/parts.h) and no byte of an answer crosses from teacher to
// student twice. Collectives: in receive(), and with `same_rows` in the constructor. Threads:
// compute.
class TeacherClient : public FrozenAnswers {
 public:
  struct Options {
    std::string role;                      // "teacher"
    std::vector<TeacherReplica> replicas;  // already connected, leaders and holders
    PayloadSpec spec;                      // common_vocab: by the handshake, but for target_logps
    std::chrono::milliseconds timeout{120'000};
    // Connects again to what was lost; outlives the client. Null: a lost replica stays lost.
    rpc::PeerLinks* links = nullptr;
    std::chrono::milliseconds patience{0};  // with links: for how long all replicas may be away
    int64_t student_vocab_rows = 0;
    bool weights_fingerprint = false;  // ask for TeacherInfo::weights_fingerprint
    // the student's ranks that need each answer together; null: this rank alone
    parallel::Group* tp = nullptr;
    // The student's ranks that compare with the same rows of the head, which is then fetched once a
    // host; all of them make a client at the same time. Null: this rank fetches it.
    parallel::Group* same_rows = nullptr;
    // Answers and head come onto devices, as rpc.device_maps says, and are used on this one. Null:
    // they come in host memory.
    std::optional<at::Device> device;
  };
  // Handshake with every replica: fingerprints over the ids both tokenizers know must agree
  // (kMismatch showing both), replicas must agree with each other; fetches the head when the
  // payload is hidden states.
  TeacherClient(rpc::Agent& agent, Options options, const models::Tokenizer& student_tokenizer);

  const TeacherInfo& info() const { return replicas_.info(); }
  const PayloadSpec& spec() const { return options_.spec; }
  // Defined for hidden_states: [Vt, Ht]. With `tp` the rows of this rank's shard of the student's
  // vocabulary, on the last rank that has rows also those above it.
  const at::Tensor& head_weight() const override { return head_; }
  int64_t common_vocab() const override { return options_.spec.common_vocab; }
  const std::string& role() const { return options_.role; }

  // Sends tokens (as int32) and the positions wanted; returns at once.
  PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                      const at::Tensor& positions) override;
  // Sends the whole request once more, with these ids: a replica that kept its rows answers from
  // them, any other computes them again.
  void name_ids(PendingPayload& pending, const at::Tensor& ids) override;
  // Waits, checks the label, fails over. kPeerLost when no replica is left or came back within
  // `patience`, kMismatch when one came back as another model. `waited` (optional)
  // gets the seconds spent waiting. With `tp`: a vote, so that the error of one rank is thrown on
  // all, then gather_parts; every row arrives on every rank (full: with this rank's columns).
  Payload receive(PendingPayload pending, double* waited = nullptr) override;

 private:
  int64_t parts() const { return options_.tp == nullptr ? 1 : options_.tp->size(); }
  int64_t part() const { return options_.tp == nullptr ? 0 : options_.tp->rank(); }
  PieceMap pieces() const { return {.vocab_rows = info().vocab_rows, .ranks = info().tp}; }
  void set_common_vocab(const models::Tokenizer& student);
  at::Tensor fetch_rows(const std::string& peer, int64_t begin, int64_t end) const;
  // The rows of the head that this rank of the student compares with.
  Range wanted_rows() const;
  at::Tensor fetch_head(Range wanted) const;
  at::Tensor head_of_this_host() const;
  void start(PendingPayload& pending, size_t preferred);
  void keep_rows(PendingPayload& pending, size_t preferred);
  void dispatch(PendingPayload& pending, size_t replica);
  Payload receive_part(PendingPayload pending, double* waited);
  Payload take_pieces(PendingPayload& pending) const;
  void place(at::Tensor& received) const;
  Payload placed(Payload received) const;

  rpc::Agent& agent_;
  Options options_;
  FrozenReplicas replicas_;
  at::Tensor head_;
};

}  // namespace retort::roles
