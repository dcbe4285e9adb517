// The proof that an engine computes with the weights that it was given.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "engines/contract/engine.h"
#include "models/decoder/decoder.h"

namespace retort::engines {

struct CanaryOptions {
  int64_t tokens = 256;          // of all sequences together
  double tolerance = 1e-3;       // largest difference of a log-probability that is none
  double mean_tolerance = 1e-3;  // on average
  // Seeds the ids. No process may have had the number before, or a server's cache knows the answers
  // of an earlier one, which had a version of the same number.
  uint64_t nonce = 0;
};

struct Receipt {
  uint64_t version = 0;
  int64_t tokens = 0;            // log-probabilities that were compared
  double largest = 0, mean = 0;  // of their differences
  double tolerance = 0, mean_tolerance = 0;
  // a number that is no number is a difference
  bool accepted() const { return tokens > 0 && largest <= tolerance && mean <= mean_tolerance; }
};
// A line of receipts.jsonl, without its end; `process`: whose engine it is, "generator/0".
std::string to_json(const Receipt& receipt, const std::string& process);

// Has the engine score sequences of random ids, one of them the same for every version of a
// process, which a stale cache would answer, the others new, which none knows; and draw a token
// after the first. Compares what it gives at every position (the given token, and the most probable
// ones where it can) with the decoder's own forward. Every weight of the model takes part in every
// position but the embeddings of ids that do not occur.
// Cost: one score() for each 32 tokens and one more, and a draw; the forward of `tokens` + 32
// tokens here, and their logits, 32 rows of the vocabulary at a time.
// Errors: the engine's; kMismatch for an id that the decoder does not have.
Receipt check_weights(Engine& engine, const models::Decoder& decoder, uint64_t version,
                      const CanaryOptions& options, Deadline deadline);

}  // namespace retort::engines
