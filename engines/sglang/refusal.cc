#include "engines/sglang/refusal.h"

#include <string_view>

#include "engines/wire/answer_status.h"

namespace retort::engines::sglang {
namespace {

bool says(const Error& error, std::string_view part) {
  return error.message().find(part) != std::string::npos;
}

Error without_door(const Error& error) {
  return with_advice(error, ErrorCode::kInvalidArgument,
                     "the server has no such door; this speaks to SGLang 0.5.23 and its like");
}

}  // namespace

std::optional<int64_t> vocabulary_of(const std::string& text) {
  const auto highest = number_after(text, "logit_bias must has keys in [0, ");
  if (!highest) return std::nullopt;
  return *highest + 1;
}

Error explained(const Error& error) {
  const int status = status_of(error);
  if (status == 404 || status == 405) return without_door(error);
  if (status != 400 && status != 422) return error;
  // SGLang says what is wrong in words alone, so the words decide what to advise. Without known
  // ones its own message must do.
  if (says(error, "context length") || says(error, "maximum allowed length"))
    return with_advice(error, ErrorCode::kInvalidArgument,
                       "the tokens are more than the server's context holds; start it with a "
                       "larger --context-length");
  return with_advice(error, ErrorCode::kInvalidArgument, "SGLang does not take the request");
}

Error explained_admin(const Error& error) {
  const int status = status_of(error);
  if (status == 404 || status == 405) return without_door(error);
  if (status == 401 || status == 403)
    return with_advice(error, ErrorCode::kUnauthenticated,
                       "the server does not open this door to the key; where it has an "
                       "--admin-api-key, that one alone does: give it the same as --api-key");
  if (status != 400) return error;
  if (says(error, "not flushed") || says(error, "lush cache failed") || says(error, "Flush"))
    return with_advice(error, ErrorCode::kUnavailable,
                       "the server kept what it computed with the weights before; are requests of "
                       "others running?");
  return with_advice(error, ErrorCode::kMismatch,
                     "the server did not take the weights; what it serves now is not known, as "
                     "SGLang reads the same folder again when it fails");
}

}  // namespace retort::engines::sglang
