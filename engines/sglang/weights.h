// Makes SGLang's questions to load weights, and checks its answers.
#pragma once

#include <string>

#include "base/future.h"
#include "engines/sglang/served_model.h"

namespace retort::engines::sglang {

// The body for /update_weights_from_disk: the server reads the folder, forgets its cache, and calls
// the weights `version` from then on. kInvalidArgument for a path that is not UTF-8.
std::string update_question(const std::string& folder, const std::string& version);

// Checks the answer of /update_weights_from_disk: {"success": true, "message": ...,
// "num_paused_requests": ...}. kMismatch for another.
Empty check_updated(const std::string& json);

// Checks the answer of /flush_cache, a text that says so. kMismatch for another.
Empty check_flushed(const std::string& text);

// Checks what /model_info says afterwards. kMismatch if the server serves another folder or
// version.
Empty check_loaded(const ModelInfo& model, const std::string& folder, const std::string& version);

}  // namespace retort::engines::sglang
