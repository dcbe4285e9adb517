// Completions of a list of prompts in one call, by an engine of its own
// (models/generation/engine.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/request.h"

namespace retort::models {

struct GenerateOptions {
  DrawOptions draw;
  int64_t max_batch = 32;  // prompts computed together
};

// One completion for each prompt, in order; sample ids are 0, 1, ... `on_token(sample, token)`
// (optional) streams. kInvalidArgument and kCorrupt as Engine::submit and Engine::step.
std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options,
                                 const std::function<void(size_t, int32_t)>& on_token = {});

}  // namespace retort::models
