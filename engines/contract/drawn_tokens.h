// Checks that a server drew what it was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/contract/engine.h"

namespace retort::engines {

// How a completion ended, in the server's words.
struct Ending {
  std::string finish_reason;             // "stop", "length", "abort"; "" if it does not say
  std::optional<int64_t> stop_id;        // what stopped it, where that is a token
  std::optional<std::string> stop_text;  // or a text
};

// What was drawn, each list as long as the answer makes it.
struct DrawnTokens {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> named_ids;  // that stand beside the log-probabilities
  std::vector<float> log_probs;
  Ending ending;
};

// The end is decided as our engine does: an end token before a stop string before the length.
// kMismatch, naming the field: lists of different lengths, ids outside the vocabulary, an end that
//   was not asked for, or that came before max_new_tokens (servers cut those to what their context
//   or their settings leave, without a word).
// kUnavailable: the server gave the request up.
Drawn checked_drawn(DrawnTokens tokens, const DrawRequest& request);

}  // namespace retort::engines
