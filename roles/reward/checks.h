// What a question and an answer about rewards cannot be.
#pragma once

#include <cstdint>

#include "roles/reward/methods.h"

namespace retort::roles {

// kInvalidArgument unless every offset and id lies in what it indexes, and every sequence has a
// completion. `vocab_rows`: ids lie below it.
void check_question(const RewardQuestion& question, int64_t vocab_rows);

// kMismatch for an answer to another question, kCorrupt for a wrong count or a number that is none.
void check_answer(const RewardQuestion& question, const RewardAnswer& answer);

}  // namespace retort::roles
