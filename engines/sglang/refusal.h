// Reads SGLang's refusals and turns them into errors that say what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace retort::engines::sglang {

// The ids that the model knows, of "logit_bias must has keys in [0, 415], got 2147483647.".
std::optional<int64_t> vocabulary_of(const std::string& text);

// An error of http::Client with what a user can do about it. Status 400, which is kMismatch there,
// becomes kInvalidArgument: the request asks for what the server cannot do.
Error explained(const Error& error);

// The same for /update_weights_from_disk, /flush_cache and /model_info after it. Status 400 becomes
// kUnavailable where other requests kept the cache, and stays kMismatch where the weights were
// refused.
Error explained_admin(const Error& error);

}  // namespace retort::engines::sglang
