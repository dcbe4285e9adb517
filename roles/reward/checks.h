// Refuses questions and answers about rewards that cannot be.
#pragma once

#include <cstdint>

#include "roles/reward/methods.h"

namespace retort::roles {

// kInvalidArgument unless every offset and id lies in what it indexes, and every sequence has a
// completion. `vocab_rows`: ids lie below it.
void check_question(const RewardQuestion& question, int64_t vocab_rows);

void check_question(const JudgeQuestion& question);  // kInvalidArgument

// kMismatch for an answer to another question, kCorrupt for a wrong count or a number that is none.
void check_answer(const RewardQuestion& question, const RewardAnswer& answer);
void check_answer(const JudgeQuestion& question, const JudgeAnswer& answer);

}  // namespace retort::roles
