#include "models/generation/finish_reason.h"

#include <algorithm>
#include <span>
#include <string>

namespace retort::models {
namespace {

// Whether a stop string ends in the newest token. A token may be one byte of a character, or
// nothing at the beginning, so some tokens more than the string has characters are looked at.
bool contains_stop(const Sequence& sequence, const Detokenizer& detokenizer) {
  const std::vector<std::string>& stops = sequence.group->request->request.draw.stop;
  if (stops.empty()) return false;
  size_t longest = 0;
  for (const std::string& stop : stops)
    longest = std::max(longest, stop.size());
  const std::vector<int32_t>& ids = sequence.result.token_ids;
  const size_t count = std::min(ids.size(), longest + 8);
  const std::string text = detokenizer(std::span(ids).last(count));
  return std::any_of(stops.begin(), stops.end(),
                     [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
}

}  // namespace

std::optional<FinishReason> finish_reason_of(const Sequence& sequence,
                                             const Detokenizer& detokenizer) {
  const std::vector<int64_t>& eos = sequence.group->request->request.draw.eos_token_ids;
  const Completion& result = sequence.result;
  if (std::find(eos.begin(), eos.end(), result.token_ids.back()) != eos.end())
    return FinishReason::kEos;
  if (contains_stop(sequence, detokenizer)) return FinishReason::kStop;
  if (static_cast<int64_t>(result.token_ids.size()) >= sequence.max_new_tokens)
    return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace retort::models
