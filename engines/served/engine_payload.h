// Turns a student's request into questions for an engine, and its answers into a payload.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/contract/engine.h"
#include "roles/payload/payload.h"
#include "roles/teacher/methods.h"

namespace retort::engines {

// kInvalidArgument, saying what would do, for a payload that the engine cannot give: another kind,
// more ids than it lists, a temperature or a masked vocabulary that its numbers do not allow.
// `vocab_rows`: of the served model's head.
void check_payload_spec(const roles::PayloadSpec& spec, int64_t vocab_rows,
                        const Abilities& abilities);

// A question for each sequence with wanted rows, in order; their rows, laid end to end, are those
// of the request. `request`: as check_request takes it.
std::vector<ScoreRequest> questions_of(const roles::ForwardRequest& request, int64_t vocab_rows);

// The answers in their order. The label is left to the caller.
//   target_logps  logps [R]: the given tokens'.
//   topk          the K most probable ids that both vocabularies have. Temperature 1: logps as they
//                 come, less what lies on ids that the student lacks (masked_mass_sum: what is seen
//                 of it); log_tail: of 1 - their sum, which the engine's fp32 does not know better
//                 than 2^-23: never below that. Other temperatures: log_softmax of logps /
//                 temperature over the K ids, exact whatever the rest of the vocabulary is, a tail
//                 of nothing, and tail_bound_sum (tempered_top_k.h).
// kCorrupt for probabilities that add up to more than 1, kMismatch if fewer than K ids are left.
roles::Payload payload_of(const roles::PayloadSpec& spec, const std::vector<Scored>& answers,
                          int64_t vocab_rows);
// The ids that the engine is asked about, for a spec whose ids the student names, `ids` [R, K]
// int32: those, and in each row all ids that the student lacks, so that their mass is known and not
// guessed.
at::Tensor named_ids(const roles::PayloadSpec& spec, const at::Tensor& ids, int64_t vocab_rows);
// Its answers [r, K + those] float32 in their order: logps at the student's ids, which the payload
// does not repeat, less what lies on ids that it lacks (masked_mass_sum, all of it); log_tail as
// for topk. kCorrupt for probabilities that add up to more than 1.
roles::Payload payload_of_named(const roles::PayloadSpec& spec,
                                const std::vector<at::Tensor>& answers, int64_t vocab_rows);
// hidden_states: [R, H] of each question.
roles::Payload payload_of_hidden(const std::vector<at::Tensor>& answers);

}  // namespace retort::engines
