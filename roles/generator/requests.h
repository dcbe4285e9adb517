// A generator's requests: what is refused before the engine sees it, and what the engine gets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/generation/request.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// The rows of a pack. kInvalidArgument, naming `method`, unless both are vectors of int32 and
// cu_seqlens rises from 0 to the number of ids.
std::vector<std::vector<int32_t>> split_rows(const at::Tensor& ids, const at::Tensor& cu_seqlens,
                                             const char* method);
// kInvalidArgument for prompts that are no pack, and unless there is a sample id for each of the
// completions; of episodes also unless there is one for each prompt, and the prompts are empty.
// What only the engine can see (ids, lengths, how to draw) it refuses itself.
void check_request(const GenerateRequest& request);
// Unpacks a request that check_request has accepted. kInvalidArgument for episodes: an engine draws
// completions, an EpisodeBackend before it makes episodes of them.
models::GenerationRequest unpack_request(const GenerateRequest& request);
// kInvalidArgument unless target log-probabilities are asked, at positions of the pack.
void check_score_request(const ForwardRequest& request);

}  // namespace retort::roles
