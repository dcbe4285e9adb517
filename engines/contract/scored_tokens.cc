#include "engines/contract/scored_tokens.h"

#include <string>

#include "base/error.h"

namespace retort::engines {
namespace {

[[noreturn]] void refuse_score(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, why);
}

}  // namespace

void check_score(const ScoreRequest& request) {
  if (request.top_k < 0) refuse_score("top_k: must not be negative");
  if (request.positions.empty()) refuse_score("positions: there are none");
  int64_t before = -1;
  for (const int64_t position : request.positions) {
    if (position <= before)
      refuse_score("positions: " + std::to_string(position) + " after " + std::to_string(before) +
                   "; they must increase from 0 on");
    before = position;
  }
  const auto num_given = static_cast<int64_t>(request.token_ids.size());
  if (num_scored_tokens(request) > num_given)
    refuse_score("positions: " + std::to_string(before) + " has no token after it among " +
                 std::to_string(num_given));
}

int64_t num_scored_tokens(const ScoreRequest& request) {
  return static_cast<int64_t>(request.positions.back()) + 2;
}

}  // namespace retort::engines
