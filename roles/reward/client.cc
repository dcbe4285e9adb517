#include "roles/reward/client.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
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
    : agent_(agent), timeout_(options.timeout), replicas_(agent, std::move(options), student) {}

void RewardClient::send(Pending& pending, size_t replica) {
  pending.sent.replica = replica;
  pending.sent.epoch = replicas_.epoch(replica);
  pending.answer =
      agent_.call(replicas_[replica].leader, kRewardScore, pending.question, {.timeout = timeout_});
}

RewardAnswer RewardClient::receive(Pending& pending) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) throw Error(ErrorCode::kCancelled, "nobody waits for the scores any more");
      cancel_ = pending.answer.canceller();
    }
    try {
      RewardAnswer answer = pending.answer.get();
      check_answer(pending.question, answer);
      return answer;
    } catch (const Error& error) {
      send(pending, replicas_.next(error, pending.sent, pending.question.request_id));
    }
  }
}

void RewardClient::stop() {
  replicas_.stop();
  std::function<void()> cancel;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    cancel = cancel_;
  }
  if (cancel) cancel();
}

std::vector<double> RewardClient::score(const std::vector<Sequence>& sequences, int64_t label) {
  const std::span<const Sequence> all(sequences);
  std::vector<Pending> open;
  for (size_t first = 0; first < all.size(); first += kSequencesPerRequest) {
    const size_t count = std::min(kSequencesPerRequest, all.size() - first);
    Pending& pending = open.emplace_back();
    pending.question = question_of(all.subspan(first, count), label);
    pending.question.request_id = ++last_request_;

    const size_t own = last_request_ % replicas_.size();
    if (const auto found = replicas_.choose(own)) {
      send(pending, *found);
      continue;
    }

    // While none can be asked receive() waits.
    pending.sent = {.replica = own, .epoch = replicas_.epoch(own)};
    Promise<RewardAnswer> lost;
    pending.answer = lost.future();
    lost.set_error(std::make_exception_ptr(replicas_.none_now()));
  }

  std::vector<double> scores;
  try {
    for (Pending& pending : open) {
      const RewardAnswer answer = receive(pending);
      scores.insert(scores.end(), answer.scores.begin(), answer.scores.end());
    }
  } catch (...) {
    for (Pending& pending : open)
      if (pending.answer.valid()) pending.answer.cancel();
    throw;
  }
  return scores;
}

}  // namespace retort::roles
