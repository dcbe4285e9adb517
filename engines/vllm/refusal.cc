#include "engines/vllm/refusal.h"

#include <string_view>

namespace retort::engines::vllm {
namespace {

bool has(const Error& error, std::string_view part) {
  return error.message().find(part) != std::string::npos;
}

}  // namespace

std::optional<LogProbLimit> log_prob_limit(const std::string& text) {
  const auto asked = number_after(text, "Requested prompt logprobs of ");
  const auto allowed = number_after(text, "greater than max allowed: ");
  if (!asked || !allowed) return std::nullopt;
  return LogProbLimit{*asked, *allowed};
}

Error explained(const Error& error) {
  const int status = status_of(error);
  if (status != 400 && status != 422) return error;
  // vLLM says what is wrong in words alone, so the words decide what to advise. Without known ones
  // its own message must do.
  if (const auto limit = log_prob_limit(error.message()))
    return with_advice(error, ErrorCode::kInvalidArgument,
                       "top_k: the server gives the " + std::to_string(limit->allowed) +
                           " most probable tokens at the most; start it with --max-logprobs " +
                           std::to_string(limit->asked) + " or more");
  if (has(error, "maximum context length") || has(error, "max_model_len") ||
      has(error, "max_tokens must be at least 1"))
    return with_advice(error, ErrorCode::kInvalidArgument,
                       "the tokens are more than the server's context holds, which for a score is "
                       "one more than are given; start it with a larger --max-model-len");
  if (has(error, "out of vocabulary") || has(error, "out-of-vocab"))
    return with_advice(error, ErrorCode::kMismatch,
                       "the server's model does not know a token id; it has another tokenizer");
  return with_advice(error, ErrorCode::kInvalidArgument, "vLLM does not take the request");
}

Error explained_named(const Error& error) {
  const int status = status_of(error);
  if (status == 403 || status == 404 || status == 405)
    return with_advice(error, ErrorCode::kInvalidArgument,
                       "/inference/v1/generate, where ids are named, is not open; start vLLM 0.32 "
                       "or later with --enable-scale-out");
  if (status != 400 && status != 422) return error;
  const Error usual = explained(error);
  return with_advice(usual, usual.code(),
                     "ids that are named for each position need vLLM 0.32 or later with "
                     "VLLM_USE_V2_MODEL_RUNNER=1, and at most --max-logprobs of them");
}

Error explained_admin(const Error& error) {
  const int status = status_of(error);
  if (status != 404 && status != 405) return error;
  return with_advice(error, ErrorCode::kInvalidArgument,
                     "the server has no such door; start vLLM with VLLM_SERVER_DEV_MODE=1, on an "
                     "address that nobody else reaches");
}

}  // namespace retort::engines::vllm
