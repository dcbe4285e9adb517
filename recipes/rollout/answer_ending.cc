#include "recipes/rollout/answer_ending.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace retort::recipes {
namespace {

constexpr const char* kAnswer = "answer";

// The tokens behind the content of an answer that ends a conversation.
std::vector<int32_t> tokens_behind_content(const models::ChatTemplate& chat,
                                           const models::Tokenizer& tokenizer) {
  const std::string conversation = R"([{"role":"user","content":"question"},)"
                                   R"({"role":"assistant","content":")" +
                                   std::string(kAnswer) + R"("}])";
  const std::string text = chat.render(conversation, false).text;
  const size_t content = text.rfind(kAnswer);
  if (content == std::string::npos) return {};
  const size_t end = content + std::string(kAnswer).size();

  const models::Tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
  std::vector<int32_t> behind;
  for (size_t i = 0; i < encoding.ids.size(); ++i)
    if (encoding.offsets[i].first >= end) behind.push_back(encoding.ids[i]);
  return behind;
}

}  // namespace

AnswerEnding::AnswerEnding(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer,
                           int64_t max_length)
    : max_length_(max_length) {
  if (!chat.exists()) return;
  try {
    behind_content_ = tokens_behind_content(chat, tokenizer);
  } catch (const Error& error) {
    RETORT_LOG(kWarning) << "completions are scored as they were drawn: the chat template renders "
                            "no conversation of a question and an answer: "
                         << error.message();
  }
}

std::vector<int32_t> AnswerEnding::completion_of(const rewards::RewardInput& input) const {
  std::vector<int32_t> ids = input.completion_ids;
  if (!input.is_chat || input.truncated || ids.empty()) return ids;
  const auto end_token = std::find(behind_content_.begin(), behind_content_.end(), ids.back());
  if (end_token == behind_content_.end()) return ids;

  const auto length = static_cast<int64_t>(input.prompt_ids.size() + ids.size());
  const int64_t room = std::max(int64_t{0}, max_length_ - length);
  const auto first = end_token + 1;
  const int64_t count = std::min(room, static_cast<int64_t>(behind_content_.end() - first));
  ids.insert(ids.end(), first, first + count);
  return ids;
}

}  // namespace retort::recipes
