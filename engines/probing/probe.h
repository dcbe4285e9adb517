// Asks an engine what its answers mean, before a role relies on them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "engines/contract/contract.h"
#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::models {
class Decoder;
class Tokenizer;
}  // namespace retort::models

namespace retort::engines {

// The engine that is asked, and what the role takes it for. All of it outlives the call.
struct ProbeSubject {
  Engine& engine;
  const models::Tokenizer& tokenizer;
  EngineKind kind = EngineKind::kVllm;
  std::string url;
  // of config.json; ids of answers lie below it where the engine does not say how many it knows
  int64_t vocab_rows = 0;
  std::vector<int64_t> end_tokens;         // of the role; every draw names them
  const models::Decoder* local = nullptr;  // the weights that the engine serves, on the CPU
};

struct ProbeOptions {
  // top_k and min_p, so that what they do is tried as well; the rest is for check_contract
  models::SamplingOptions sampling;
  std::optional<double> tolerance;  // the recipe's; Contract::tolerance
  // Asks at named ids too. Servers may not know that question, so only roles that need it set this.
  bool names_ids = false;
  // Names the ids that stand before the probe's text, so that no cache of the server holds it: a
  // number that no probe of this server had before.
  uint64_t nonce = 0;
};

// No probe exceeds these.
inline constexpr int64_t kMaxProbeRequests = 120;
inline constexpr int64_t kMaxProbeRequestTokens = 80;
// Positions of a scored sequence that are asked for; some engines answer each by a request.
inline constexpr int64_t kProbeRows = 24;

// At most so many of a model's rewards are asked for, where it gives several numbers.
inline constexpr int64_t kMaxProbeLabels = 4;

// Asks what the engine can do (Engine::abilities), and fills a Contract; it refuses nothing, which
// is check_contract's. What is asked, of a text of about 48 tokens, 24 positions of it:
//
//   state, the widest top-k, the tokenizer's highest id
//   the text cold; again, twice; with tokens behind it; beside three others; ids moved by one
//   greedy completions of 16 tokens, and seeded ones at temperature 1, alone and beside others,
//     all scored afterwards; one that must end at a token it was given as an end token
//   single tokens at the two least certain places of the text: six at temperature 2, six for each
//     way of truncating, each then scored. Two tokens of one place need no normaliser:
//     l_a - l_b is what it is raw, and divided by T where a log-probability is tempered.
//   hidden states of the text; with names_ids its log-probabilities at the ids of its top-k,
//     named one by one in another order, which must be the same numbers
//   rewards of the text: all numbers, again, beside three others
//
// Requests: at most kMaxProbeRequests, most of them of one token; each of at most
// kMaxProbeRequestTokens. With `local` as many tokens go through the copy.
// Threads: not a loop thread; it waits. With `local` the compute thread.
// Errors: as Engine's, with the question as context (probe=...); kTimeout at `deadline`; kCorrupt
// for an answer that cannot be; kInvalidArgument for a tokenizer or a context that is too small
// for the text. Questions that are open then are cancelled.
Contract probe(const ProbeSubject& subject, const ProbeOptions& options, Deadline deadline);

// Probes an engine that is asked in words: its answer to a plain question, three times again, three
// times beside seven others, and one that must be cut after two tokens. Threads, errors: as
// probe().
Contract probe_words(Engine& engine, EngineKind kind, const std::string& url, Deadline deadline);

}  // namespace retort::engines
