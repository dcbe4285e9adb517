#include "models/generation/finish_reason.h"

#include <algorithm>
#include <span>
#include <string>

#include "models/generation/stop_text.h"

namespace retort::models {
namespace {

// Whether a stop string ends in the newest token. A token may be one byte of a character, or
// nothing at the beginning, so some tokens more than the string has characters are looked at. None
// may end within the first min_new_tokens.
bool contains_stop(const Sequence& sequence, const Detokenizer& detokenizer) {
  const DrawOptions& draw = sequence.group->request->request.draw;
  const std::vector<int32_t>& ids = sequence.result.token_ids;
  const auto least = static_cast<size_t>(draw.min_new_tokens);
  if (draw.stop.empty() || ids.size() <= least) return false;
  size_t longest = 0;
  for (const std::string& stop : draw.stop)
    longest = std::max(longest, stop.size());
  const size_t count = std::min(ids.size(), longest + 8);
  const auto newest = std::span(ids).last(count);

  const size_t before = ids.size() - count;
  const size_t early = before < least ? detokenizer(newest.first(least - before)).size() : 0;
  return find_stop(detokenizer(newest), draw.stop, early) != std::string::npos;
}

}  // namespace

std::optional<FinishReason> finish_reason_of(const Sequence& sequence,
                                             const Detokenizer& detokenizer) {
  const DrawOptions& draw = sequence.group->request->request.draw;
  const Completion& result = sequence.result;
  const auto is_newest = [&](const std::vector<int64_t>& ids) {
    return std::find(ids.begin(), ids.end(), result.token_ids.back()) != ids.end();
  };
  if (is_newest(draw.eos_token_ids)) return FinishReason::kEos;
  if (is_newest(draw.stop_token_ids)) return FinishReason::kStop;
  if (contains_stop(sequence, detokenizer)) return FinishReason::kStop;
  if (static_cast<int64_t>(result.token_ids.size()) >= sequence.max_new_tokens)
    return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace retort::models
