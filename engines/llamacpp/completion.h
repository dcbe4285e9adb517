// Reads and checks the answer of POST /completion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engines/llamacpp/json.h"

namespace retort::engines::llamacpp {

// The server takes the logarithm of a float32 probability and says -3.4e38 where that is 0. It is
// given as the logarithm of the smallest float32 here, -103.28: the true one is not above it.
inline constexpr float kLeastLogProb = -103.27893F;

// The model's log-probabilities at one position, before any sampler: temperature 1, whole
// vocabulary.
struct Chances {
  int32_t id = 0;  // that was drawn
  float log_prob = 0;
  std::vector<int32_t> top_ids;  // by falling log-probability
  std::vector<float> top_log_probs;
};

enum class StopType { kEnd, kWord, kLimit };

struct Completion {
  std::vector<int32_t> token_ids;
  // One for each token that the server says something about, in their order. It leaves out each
  // token after which the text ends within a character of UTF-8, and as many of the last ones as a
  // stop string that ended the completion has tokens.
  std::vector<Chances> chances;
  StopType stop = StopType::kLimit;
  std::string stop_string;  // of kWord
  bool truncated = false;   // the context of the slot was full
  Json settings;            // that it was drawn with; null if they were not asked for
};

struct CompletionBounds {
  int64_t vocab_rows = 0;
  int64_t max_tokens = 0;
  int64_t num_top = 1;  // n_probs
};

// Members of the answer that read_completion() needs: response_fields of a request.
std::vector<std::string> completion_fields();
// kCorrupt naming the field: counts, ids, log-probabilities that cannot be. kMismatch for an answer
// to another question.
Completion read_completion(const Json& answer, const CompletionBounds& bounds);
// Bytes that such an answer has at most, for a prompt of `prompt_tokens`. Formula: 1 MiB for
// settings, 64 for each token of the prompt, which older servers repeat as text, and for each new
// token 1 KiB and 1 KiB for each of num_top.
uint64_t completion_bytes(int64_t prompt_tokens, const CompletionBounds& bounds);

}  // namespace retort::engines::llamacpp
