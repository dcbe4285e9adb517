// The checks of requests and options. Private to models/.
#pragma once

#include "models/generation/engine.h"

namespace retort::models {

// kInvalidArgument as Engine::submit says.
void check_request(const GenerationRequest& request, const ModelConfig& config,
                   const EngineOptions& options, int64_t num_blocks, bool has_detokenizer);

}  // namespace retort::models
