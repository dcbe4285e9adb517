// SGLang's own HTTP server as an Engine.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines::sglang {

// Written against the source of SGLang 0.5.23; no server of it was run (docs/engines.md).
//
//   state()         /ready, /model_info, /server_info; the first time one request more, which the
//                   server refuses with the size of its vocabulary
//   draw(), score() /generate with token ids in both directions. The first of all asks as above.
//   load_weights()  /update_weights_from_disk, /flush_cache, /model_info; then state() and a score
//                   of two tokens. From then on every answer must name the version of the weights.
//
// Given up: a draw that is cancelled, takes too long or breaks on its way is aborted by its name
//   (/abort_request), as far as administrative doors may be used; the server also notices that its
//   connection is closed.
// Caches: requests of one version of the weights share a prefix cache with each other alone
//   (cache_salt), also in storage that outlives the server.
// Differences to our own engine: at temperature 0 a tie may be decided otherwise. Seeds count with
//   --enable-deterministic-inference alone.
// Log-probabilities of given tokens are the model's, at temperature 1; those of drawn ones are
//   log_softmax(logits / T) over the whole vocabulary, before top_k, top_p and min_p, unless the
//   server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1: then at temperature 1.
// make_engine() says the rest.
std::unique_ptr<Engine> make_sglang(const ExternalOptions& options, const std::string& url,
                                    const std::string& key);

}  // namespace retort::engines::sglang
