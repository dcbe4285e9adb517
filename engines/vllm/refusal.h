// Reads vLLM's refusals and turns them into errors that say what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "engines/wire/answer_status.h"

namespace retort::engines::vllm {

// The two numbers of "Requested prompt logprobs of 65, which is greater than max allowed: 64".
struct LogProbLimit {
  int64_t asked = 0;    // of -1: the ids that the model knows
  int64_t allowed = 0;  // --max-logprobs; without such a limit the ids that the model knows
};
std::optional<LogProbLimit> log_prob_limit(const std::string& text);

// An error of http::Client with what a user can do about it. Status 400 and 422, which are
// kMismatch there, become kInvalidArgument where the request asks for what the server cannot do;
// an id that the server does not know stays kMismatch.
Error explained(const Error& error);

// The same for what names ids, whose door is shut by default.
Error explained_named(const Error& error);

// The same for the doors that exist with VLLM_SERVER_DEV_MODE=1 alone.
Error explained_admin(const Error& error);

}  // namespace retort::engines::vllm
