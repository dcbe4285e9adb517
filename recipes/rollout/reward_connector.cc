#include "recipes/rollout/reward_connector.h"

#include <memory>

#include "recipes/run/role_connections.h"
#include "roles/reward/client.h"

namespace retort::recipes {

rewards::ConnectRole reward_connector(RunContext& context) {
  return [&context](const rewards::RewardOptions& options) -> rewards::AskRole {
    const std::shared_ptr<roles::RewardClient> client = connect_reward_role(context, *options.role);
    const auto score = [client, label = options.label.value_or(0)](
                           const std::vector<rewards::RewardInput>& inputs) {
      std::vector<roles::RewardClient::Sequence> sequences;
      for (const rewards::RewardInput& input : inputs)
        sequences.push_back({.prompt = input.prompt_ids, .completion = input.completion_ids});
      return client->score(sequences, label);
    };
    return {.score = score, .stop = [client] { client->stop(); }};
  };
}

}  // namespace retort::recipes
