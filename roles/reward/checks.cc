#include "roles/reward/checks.h"

#include <cmath>
#include <string>

#include "base/error.h"

namespace retort::roles {
namespace {

[[noreturn]] void refuse(const std::string& what, const RewardQuestion& question) {
  throw Error(ErrorCode::kInvalidArgument, "reward.score: " + what)
      .with("request", question.request_id);
}

void check_answered(const std::string& method, uint64_t asked, uint64_t answered) {
  if (answered == asked) return;
  throw Error(ErrorCode::kMismatch, method + ": an answer to another question")
      .with("request", asked)
      .with("answered", answered);
}

void check_count(const std::string& method, uint64_t request, size_t expected, size_t found) {
  if (found == expected) return;
  throw Error(ErrorCode::kCorrupt, method + ": " + std::to_string(found) + " answers for " +
                                       std::to_string(expected) + " completions")
      .with("request", request);
}

}  // namespace

void check_question(const RewardQuestion& question, int64_t vocab_rows) {
  const auto& ends = question.cu_seqlens;
  const auto tokens = static_cast<int64_t>(question.input_ids.size());
  if (question.label < 0) refuse("a label below 0", question);
  if (ends.size() != question.num_sequences() + 1 || ends.front() != 0 || ends.back() != tokens)
    refuse("cu_seqlens must have one number for each sequence and one more, from 0 to " +
               std::to_string(tokens),
           question);

  // A score is of the text after the prompt, so there must be some.
  for (size_t s = 0; s < question.num_sequences(); ++s) {
    const int64_t length = int64_t{ends[s + 1]} - ends[s];
    if (question.prompt_tokens[s] < 0 || length <= question.prompt_tokens[s])
      refuse("sequence " + std::to_string(s) + " has " + std::to_string(length) + " tokens, " +
                 std::to_string(question.prompt_tokens[s]) + " of them its prompt: no completion",
             question);
  }

  for (const int32_t id : question.input_ids)
    if (id < 0 || id >= vocab_rows)
      refuse("token id " + std::to_string(id) + " is outside the model's vocabulary of " +
                 std::to_string(vocab_rows) + " rows; student and role differ in their tokenizers",
             question);
}

void check_question(const JudgeQuestion& question) {
  if (question.max_new_tokens < 1)
    throw Error(ErrorCode::kInvalidArgument, "judge.answer: max_new_tokens must be at least 1")
        .with("request", question.request_id);
}

void check_answer(const RewardQuestion& question, const RewardAnswer& answer) {
  check_answered("reward.score", question.request_id, answer.request_id);
  check_count("reward.score", question.request_id, question.num_sequences(), answer.scores.size());
  for (const double score : answer.scores)
    if (!std::isfinite(score))
      throw Error(ErrorCode::kCorrupt, "reward.score: a score is not finite")
          .with("request", question.request_id);
}

void check_answer(const JudgeQuestion& question, const JudgeAnswer& answer) {
  check_answered("judge.answer", question.request_id, answer.request_id);
  check_count("judge.answer", question.request_id, question.texts.size(), answer.texts.size());
  check_count("judge.answer", question.request_id, question.texts.size(), answer.cut.size());
}

}  // namespace retort::roles
