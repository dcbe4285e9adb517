#include "roles/reward/client.h"

#include <algorithm>
#include <utility>

#include "roles/reward/checks.h"

namespace retort::roles {
namespace {

RewardQuestion question_of(std::span<const RewardClient::Sequence> sequences, int64_t label) {
  RewardQuestion question{.label = label, .cu_seqlens = {0}};
  std::vector<int32_t>& ids = question.input_ids;
  for (const RewardClient::Sequence& sequence : sequences) {
    ids.insert(ids.end(), sequence.prompt.begin(), sequence.prompt.end());
    ids.insert(ids.end(), sequence.completion.begin(), sequence.completion.end());
    question.cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
    question.prompt_tokens.push_back(static_cast<int32_t>(sequence.prompt.size()));
  }
  return question;
}

}  // namespace

RewardClient::RewardClient(rpc::Agent& agent, FrozenReplicas::Options options,
                           const models::Tokenizer& student)
    : calls_(agent, std::move(options), &student, kRewardScore) {}

std::vector<double> RewardClient::score(const std::vector<Sequence>& sequences, int64_t label) {
  const std::span<const Sequence> all(sequences);
  std::vector<RewardQuestion> questions;
  for (size_t first = 0; first < all.size(); first += kSequencesPerRequest) {
    const size_t count = std::min(kSequencesPerRequest, all.size() - first);
    questions.push_back(question_of(all.subspan(first, count), label));
  }

  std::vector<double> scores;
  for (const RewardAnswer& answer : calls_.ask(std::move(questions)))
    scores.insert(scores.end(), answer.scores.begin(), answer.scores.end());
  return scores;
}

}  // namespace retort::roles
