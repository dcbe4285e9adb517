// The answers of a frozen role: the seam between a recipe and its teachers and references.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future.h"
#include "models/ops/packed.h"
#include "roles/teacher/methods.h"

namespace retort::roles {

// A request on its way; give it back to the FrozenAnswers that sent it.
struct PendingPayload {
  ForwardRequest request;
  size_t replica = 0;
  uint64_t epoch = 0;                  // of the replica when it was sent
  Future<Payload> reply;               // of the leader
  std::vector<Future<Payload>> pulls;  // of the other ranks that have pieces of this part
  // The reply that the rows of a spec that names ids were computed. Nobody reads it, but while it
  // is there the rows are wanted.
  Future<Payload> kept;
};

// An answer that is there already.
inline PendingPayload answered(Payload payload) {
  Promise<Payload> promise;
  PendingPayload pending{.request = {}, .reply = promise.future(), .pulls = {}, .kept = {}};
  promise.set_value(std::move(payload));
  return pending;
}

// TeacherClient asks processes; a test may answer by itself. Threads: compute.
class FrozenAnswers {
 public:
  virtual ~FrozenAnswers() = default;

  // Asks for the payload of `tokens` at `positions` [R]; returns at once. `request_id`: unique
  // among this rank's requests to the role.
  virtual PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                              const at::Tensor& positions) = 0;
  // For a spec that names ids, once and before receive(): those of the student, [R, K] int32
  // (make_payload), on any device. Returns at once.
  virtual void name_ids(PendingPayload&, const at::Tensor&) {
    RETORT_CHECK(false) << "what this role answers has no ids to be named";
  }
  // Waits for the answer. `waited` (optional) gets the seconds spent waiting.
  virtual Payload receive(PendingPayload pending, double* waited = nullptr) = 0;
  // Defined for hidden states: the rows of the role's head that this rank compares with.
  virtual const at::Tensor& head_weight() const = 0;
  // Ids that student and role both know.
  virtual int64_t common_vocab() const = 0;
};

}  // namespace retort::roles
