// Finds the numbers of a text that are its answer.
#pragma once

#include <optional>
#include <span>

#include "recipes/data/detail/answer_tokens.h"
#include "recipes/data/detail/answer_value.h"

namespace retort::data::detail {

enum class AnswerPlace {
  kWhole,  // all of the tokens are the answer: a box
  kFirst,  // the first formula with a number, as behind "####"
  kLast    // the last one
};

struct FoundValue {
  Value value;
  size_t begin = 0;  // of the tokens: where its formula stands
};

// The value there. Nothing where there is none, where it cannot be read, and where several numbers
// might be meant ("x = 5 or x = 7").
std::optional<FoundValue> find_value(std::span<const Token> tokens, AnswerPlace place);

}  // namespace retort::data::detail
