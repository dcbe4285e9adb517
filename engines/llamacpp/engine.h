// llama.cpp's server (llama-server, or xllamacpp's) as an engine, by its native HTTP interface.
//
// draw(): one POST /completion, ids in and out. Every sampler is set: those of a recipe act as they
//   do in our engine and in its order, all others are off, and the answer must say so. The seed
//   repeats a draw; it is not our engine's draw. The server ends at tokens that it knows itself: at
//   one that is not among eos_token_ids it is asked to go on, which changes no distribution (with
//   stop strings, kInvalidArgument); one of ours that it does not know costs tokens up to
//   max_new_tokens, which are cut off here. A prompt that leaves no room for max_new_tokens is
//   kInvalidArgument. Stop strings are looked for in the text without special tokens.
//
// score(): one request for each position, with the prefix as prompt; the server's cache of keys and
//   values makes that one token of work, a few where sequences under way begin alike: as many as
//   the server has slots (--parallel), others wait.
//   Cost of a position: its prefix's ids, 4 to 7 bytes each, on the way there; 250 bytes and 70 for
//   each of top_k on the way back (above a top_k of 16 also 2 kB and the prefix as text); a round
//   trip (1 ms of the server's on a local one) and one token's time. A token that ends within a
//   character costs more (position.h). Nothing in the server gives more than a position at a time:
//   for long sequences prefer another engine.
//
// Log-probabilities are raw: temperature 1, whole vocabulary, no penalty. They are as exact as the
//   server's cache: about 1e-5 in f32 (--cache-type-k f32 --cache-type-v f32 --flash-attn off),
//   3e-3 in its default f16. Below -103.28 they are -103.28.
//
// load_weights(): of a router (--models-dir FOLDER --models-max 1): `path` is the file of the
//   served model, replaced by renaming. A server without it refuses with kUnavailable: start it
//   anew.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines::llamacpp {

// As make_engine().
std::unique_ptr<Engine> make_llamacpp(const ExternalOptions& options, const std::string& url,
                                      const std::string& key);

}  // namespace retort::engines::llamacpp
