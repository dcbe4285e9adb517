#include "recipes/rollout/reward_connector.h"

#include <memory>
#include <utility>
#include <vector>

#include "recipes/rollout/answer_ending.h"
#include "recipes/run/role_connections.h"
#include "roles/reward/client.h"
#include "roles/reward/judge_client.h"

namespace retort::recipes {
namespace {

rewards::AskRole ask_model(RunContext& context, const rewards::RewardOptions& options) {
  const std::shared_ptr<roles::RewardClient> client = connect_reward_role(context, *options.role);
  const AnswerEnding ending(context.chat, context.tokenizer, context.recipe().data.max_length);
  const auto score = [client, ending, label = options.label.value_or(0)](
                         const std::vector<rewards::RewardInput>& inputs) {
    std::vector<std::vector<int32_t>> completions;  // which the sequences look at
    for (const rewards::RewardInput& input : inputs)
      completions.push_back(ending.completion_of(input));

    std::vector<roles::RewardClient::Sequence> sequences;
    for (size_t i = 0; i < inputs.size(); ++i)
      sequences.push_back({.prompt = inputs[i].prompt_ids, .completion = completions[i]});
    return client->score(sequences, label);
  };
  return {.score = score, .stop = [client] { client->stop(); }};
}

rewards::AskJudge ask_judge(RunContext& context, const rewards::RewardOptions& options) {
  const std::shared_ptr<roles::JudgeClient> client = connect_judge_role(context, *options.role);
  const auto answers = [client](std::vector<std::string> questions, int64_t max_new_tokens) {
    std::vector<rewards::Said> said;
    for (roles::JudgeClient::Said& one : client->ask(std::move(questions), max_new_tokens))
      said.push_back({.text = std::move(one.text), .cut = one.cut});
    return said;
  };
  return {.answers = answers, .stop = [client] { client->stop(); }};
}

}  // namespace

rewards::ConnectRoles reward_connector(RunContext& context) {
  return {.model = [&](const auto& options) { return ask_model(context, options); },
          .judge = [&](const auto& options) { return ask_judge(context, options); }};
}

}  // namespace retort::recipes
