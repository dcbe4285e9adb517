#include "engines/llamacpp/request_checks.h"

#include "base/error.h"

namespace retort::engines::llamacpp {
namespace {

void check_ids(const std::string& field, std::span<const int32_t> ids, int64_t vocab_rows) {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_rows)
      refuse_request(field + ": " + std::to_string(id) + " is none of the server's " +
                     std::to_string(vocab_rows) + " tokens");
}

}  // namespace

void refuse_request(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

void check_request(const DrawRequest& request, int64_t vocab_rows) {
  const models::DrawOptions& how = request.how;
  if (request.prompt.empty()) refuse_request("prompt: the server needs at least one token");
  check_ids("prompt", request.prompt, vocab_rows);
  if (how.max_new_tokens < 1) refuse_request("max_new_tokens: must be at least 1");
  if (static_cast<int64_t>(request.prompt.size()) + how.max_new_tokens > INT32_MAX)
    refuse_request("max_new_tokens: prompt and completion exceed what any server holds");
  if (how.sampling.num_ids > vocab_rows)
    refuse_request("num_ids: " + std::to_string(how.sampling.num_ids) +
                   ", but the server's model has " + std::to_string(vocab_rows) + " tokens");
}

void check_request(const ScoreRequest& request, int64_t vocab_rows) {
  const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
  check_ids("token_ids", request.token_ids, vocab_rows);

  int64_t before = -1;
  for (const int32_t position : request.positions) {
    if (position <= before || position + 1 >= num_tokens)
      refuse_request("positions: " + std::to_string(position) + " after " + std::to_string(before) +
                     " in " + std::to_string(num_tokens) +
                     " tokens; they increase, and a token follows each");
    before = position;
  }
  if (request.top_k < 0 || request.top_k > vocab_rows)
    refuse_request("top_k: " + std::to_string(request.top_k) + "; expected 0 to the server's " +
                   std::to_string(vocab_rows) + " tokens");
}

}  // namespace retort::engines::llamacpp
