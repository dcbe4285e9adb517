// Which ids of two vocabularies are the same token.
#pragma once

#include <cstdint>
#include <vector>

#include "models/text/token_bytes.h"
#include "models/text/tokenizer.h"

namespace retort::recipes {

// Pairs: student[i] and teacher[i] are the same token. As many of both, by the teacher's id; no id
// twice.
struct MatchedTokens {
  std::vector<int64_t> student, teacher;
};

// Tokens that are not special match by their bytes: TRL's GOLD compares spellings, which is the
// same for two byte-level tokenizers and finds little for other pairs. Of several ids of one side
// with the same bytes that is taken which the tokenizer gives a text: the lowest that is no byte of
// sentencepiece's (<0x41> beside "A"). Special tokens match by what they are for, whatever they are
// called: the ends of texts (eos), their beginnings (bos), padding (pad), in this order, where one
// token is for several. Tokens without bytes match nothing.
MatchedTokens matched_tokens(const models::TokenBytes& student, const models::TokenBytes& teacher,
                             const models::Tokenizer& student_tokenizer,
                             const models::Tokenizer& teacher_tokenizer);

}  // namespace retort::recipes
