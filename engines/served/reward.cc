#include "engines/served/reward.h"

#include <utility>
#include <vector>

#include "engines/served/served_info.h"
#include "roles/reward/checks.h"
#include "roles/teacher/caller.h"

namespace retort::engines {

using roles::RewardAnswer;
using roles::RewardQuestion;

namespace {

RewardRequest request_of(const RewardQuestion& question, size_t sequence) {
  const auto begin = question.input_ids.begin() + question.cu_seqlens[sequence];
  const auto middle = begin + question.prompt_tokens[sequence];
  const auto end = question.input_ids.begin() + question.cu_seqlens[sequence + 1];
  return {.prompt = {begin, middle}, .completion = {middle, end}, .label = question.label};
}

}  // namespace

EngineReward::EngineReward(std::shared_ptr<Engine> engine, models::Tokenizer tokenizer,
                           Options options)
    : engine_(std::move(engine)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      packs_(options_.name, options_.timeout) {}

void EngineReward::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(roles::kTeacherInfo, queue,
              [this](const roles::InfoRequest& r, const rpc::CallContext&) { return info(r); });
  agent.serve(
      roles::kRewardScore, queue,
      [this](const RewardQuestion& r, const rpc::CallContext& caller) { return score(r, caller); });
}

roles::TeacherInfo EngineReward::info(const roles::InfoRequest& request) const {
  roles::TeacherInfo info = served_info(options_.name, tokenizer_, options_.config, request);
  info.numbers = options_.numbers;
  return info;
}

Future<RewardAnswer> EngineReward::score(const RewardQuestion& question,
                                         const rpc::CallContext& caller) {
  roles::check_question(question, options_.config.vocab_size);
  // The caller's time does not run while the engine works: that has a limit of its own.
  caller.clock->wait();
  return packs_
      .ask(
          question.num_sequences(), [caller] { return roles::still_waits(caller); },
          [&](size_t i, Deadline deadline) {
            return engine_->reward(request_of(question, i), deadline);
          })
      .then([id = question.request_id](std::vector<double> scores) {
        return RewardAnswer{.request_id = id, .scores = std::move(scores)};
      });
}

bool EngineReward::work() {
  packs_.look();
  return false;
}

void EngineReward::stop() { packs_.stop(); }

}  // namespace retort::engines
