// What vLLM is told, and answers, when it loads weights.
#pragma once

#include <string>

#include "base/future.h"

namespace retort::engines::vllm {

// The body for /collective_rpc: every worker reads the folder.
std::string reload_question(const std::string& folder);

// Of /collective_rpc: {"results": [null, ...]}, one of each worker. kMismatch for another.
Empty check_reloaded(const std::string& json);

// Of /reset_prefix_cache: {"success": true}, or nothing from versions that do not say.
// kUnavailable if requests are running, whose entries stay. kMismatch for another answer.
Empty check_cache_reset(const std::string& json);

}  // namespace retort::engines::vllm
