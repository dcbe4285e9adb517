#include "engines/reward.h"

#include <utility>

#include "base/error.h"
#include "engines/served_info.h"
#include "roles/reward/checks.h"

namespace retort::engines {

using roles::RewardAnswer;
using roles::RewardQuestion;

// A request whose sequences are asked one by one. Threads: the engine's, once it was asked.
struct EngineReward::Pack {
  Promise<RewardAnswer> promise;
  RewardAnswer answer;
  size_t open = 0;  // questions without an answer
  bool failed = false;
  std::vector<std::function<void()>> cancel;  // what is asked
};

namespace {

RewardRequest request_of(const RewardQuestion& question, size_t sequence) {
  const auto begin = question.input_ids.begin() + question.cu_seqlens[sequence];
  const auto middle = begin + question.prompt_tokens[sequence];
  const auto end = question.input_ids.begin() + question.cu_seqlens[sequence + 1];
  return {.prompt = {begin, middle}, .completion = {middle, end}, .label = question.label};
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

EngineReward::EngineReward(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer,
                           Options options)
    : engine_(std::move(engine)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  shared_->name = options_.name;
}

void EngineReward::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(roles::kTeacherInfo, queue,
              [this](const roles::InfoRequest& r, const rpc::CallContext&) { return info(r); });
  agent.serve(
      roles::kRewardScore, queue,
      [this](const RewardQuestion& r, const rpc::CallContext& caller) { return score(r, caller); });
}

roles::TeacherInfo EngineReward::info(const roles::InfoRequest& request) const {
  return served_info(options_.name, tokenizer_, options_.config, request);
}

Future<RewardAnswer> EngineReward::score(const RewardQuestion& question,
                                         const rpc::CallContext& caller) {
  roles::check_question(question, options_.config.vocab_size);
  auto pack = std::make_shared<Pack>();
  Future<RewardAnswer> reply = pack->promise.future();
  pack->open = question.num_sequences();
  pack->answer = {.request_id = question.request_id, .scores = {}};
  pack->answer.scores.resize(pack->open);
  if (pack->open == 0) {
    pack->promise.set_value(pack->answer);
    return reply;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->lost) std::rethrow_exception(peer_lost(*shared_, message_of(shared_->lost)));
    shared_->packs.push_back(pack);
  }

  // The caller's time does not run while the engine works: that has a limit of its own.
  caller.clock->wait();
  const auto failed = [&] {
    const std::lock_guard lock(shared_->mutex);
    return pack->failed;
  };
  for (size_t i = 0; i < question.num_sequences() && !failed(); ++i) {
    const Deadline deadline = deadline_behind(shared_->open++, options_.timeout);
    listen(pack, i, engine_->reward(request_of(question, i), deadline));
  }
  return reply;
}

// The last answer completes the pack; the first error is that of the whole.
void EngineReward::listen(const std::shared_ptr<Pack>& pack, size_t place, Future<double> answer) {
  bool wanted = true;
  {
    const std::lock_guard lock(shared_->mutex);
    wanted = !pack->failed;
    if (wanted) pack->cancel.push_back(answer.canceller());
  }
  if (!wanted) answer.canceller()();
  answer.on_outcome([shared = shared_, pack, place](Outcome<double> outcome) {
    --shared->open;
    if (outcome.error)
      fail(*shared, pack, outcome.error);
    else
      take(*shared, pack, place, *outcome.value);
  });
}

// Callers are answered without the lock.
void EngineReward::take(Shared& shared, const std::shared_ptr<Pack>& pack, size_t place,
                        double score) {
  {
    const std::lock_guard lock(shared.mutex);
    if (pack->failed) return;
    pack->answer.scores[place] = score;
    if (--pack->open > 0) return;
    shared.packs.remove(pack);
  }
  shared.scored += static_cast<int64_t>(pack->answer.scores.size());
  pack->promise.set_value(std::move(pack->answer));
}

void EngineReward::fail(Shared& shared, const std::shared_ptr<Pack>& pack,
                        std::exception_ptr error) {
  std::vector<std::function<void()>> others;
  {
    const std::lock_guard lock(shared.mutex);
    if (std::exchange(pack->failed, true)) return;
    others.swap(pack->cancel);
    shared.packs.remove(pack);
    if (is_absent(error)) {
      shared.lost = error;
      error = peer_lost(shared, message_of(error));
    }
  }
  pack->promise.set_error(std::move(error));
  for (const auto& cancel : others)
    cancel();
}

void EngineReward::work() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->lost) std::rethrow_exception(shared_->lost);
}

void EngineReward::stop() {
  std::list<std::shared_ptr<Pack>> open;
  {
    const std::lock_guard lock(shared_->mutex);
    open = shared_->packs;
    if (!shared_->lost)
      shared_->lost = std::make_exception_ptr(Error(ErrorCode::kClosed, "the role stops"));
  }
  for (const auto& pack : open)
    fail(*shared_, pack, peer_lost(*shared_, "the role stops"));
}

std::exception_ptr EngineReward::peer_lost(const Shared& shared, const std::string& why) {
  return std::make_exception_ptr(
      Error(ErrorCode::kPeerLost, "the role ends: " + why).with("role", shared.name));
}

}  // namespace retort::engines
