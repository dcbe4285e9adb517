// vLLM's OpenAI-compatible server as an Engine.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines::vllm {

// Written against vLLM 0.32.0.
//
//   state()         /health, /version, /v1/models; the first time two requests more, which the
//                   server refuses with its --max-logprobs and the size of its vocabulary
//   draw(), score() /v1/completions with token ids in both directions. The first of all asks
//                   /v1/models before, and as above.
//   log_probs_at()  /inference/v1/generate. Doors other than /v1 change with versions: the probe
//                   compares its numbers with those of score() before a role relies on them.
//   load_weights()  /collective_rpc reload_weights, /reset_prefix_cache; then /health and a score
//                   of two tokens, as an engine that died of a folder still says that it is well
//
// Differences to our own engine: top_k and top_p keep tokens that are exactly as probable as the
//   last one kept; at temperature 0 a tie may be decided otherwise. Which token a seed draws is
//   vLLM's affair; the same seed draws the same tokens as far as its kernels repeat their numbers.
// Log-probabilities are those of temperature 1 without penalty and cut, for drawn tokens unless the
//   server was started with another --logprobs-mode.
// make_engine() says the rest.
std::unique_ptr<Engine> make_vllm(const ExternalOptions& options, const std::string& url,
                                  const std::string& key);

}  // namespace retort::engines::vllm
