#include "roles/reward/judge_client.h"

#include <utility>

#include "roles/reward/checks.h"

namespace retort::roles {

JudgeClient::JudgeClient(rpc::Agent& agent, FrozenReplicas::Options options)
    : calls_(agent, std::move(options), /*student=*/nullptr, kJudgeAnswer) {}

std::vector<JudgeClient::Said> JudgeClient::ask(std::vector<std::string> texts,
                                                int64_t max_new_tokens) {
  std::vector<JudgeQuestion> questions;
  for (std::string& text : texts) {
    if (questions.empty() || questions.back().texts.size() == kTextsPerRequest)
      questions.push_back({.max_new_tokens = max_new_tokens, .texts = {}});
    questions.back().texts.push_back(std::move(text));
  }

  std::vector<Said> said;
  for (JudgeAnswer& answer : calls_.ask(std::move(questions)))
    for (size_t i = 0; i < answer.texts.size(); ++i)
      said.push_back({.text = std::move(answer.texts[i]), .cut = answer.cut[i] != 0});
  return said;
}

}  // namespace retort::roles
