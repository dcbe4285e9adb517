#include "recipes/rollout/answer_ending.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "recipes/run/inputs/answer_end.h"

namespace retort::recipes {
AnswerEnding::AnswerEnding(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer,
                           int64_t max_length)
    : max_length_(max_length) {
  if (!chat.exists()) return;
  try {
    behind_content_ = answer_end(chat, tokenizer).ids;
    for (const int32_t id : behind_content_)
      if (is_end_sign(tokenizer, id)) end_signs_.push_back(id);
  } catch (const Error& error) {
    RETORT_LOG(kWarning) << "completions are scored as they were drawn: the chat template renders "
                            "no conversation of a question and an answer: "
                         << error.message();
  }
}

std::vector<int32_t> AnswerEnding::completion_of(const rewards::RewardInput& input) const {
  std::vector<int32_t> ids = input.completion_ids;
  if (!input.is_chat || input.truncated || ids.empty()) return ids;
  // Only a completion that ends with a sign of the template is one turn of a conversation. It gets
  // what the template writes behind that sign, as far as data.max_length leaves room.
  if (std::find(end_signs_.begin(), end_signs_.end(), ids.back()) == end_signs_.end()) return ids;

  const auto length = static_cast<int64_t>(input.prompt_ids.size() + ids.size());
  const int64_t room = std::max(int64_t{0}, max_length_ - length);
  const auto first = std::find(behind_content_.begin(), behind_content_.end(), ids.back()) + 1;
  const int64_t count = std::min(room, static_cast<int64_t>(behind_content_.end() - first));
  ids.insert(ids.end(), first, first + count);
  return ids;
}

}  // namespace retort::recipes
