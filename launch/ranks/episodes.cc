#include "launch/ranks/episodes.h"

#include <utility>

#include "recipes/run/inputs/chat.h"
#include "recipes/run/inputs/episode_options.h"
#include "recipes/run/rank/environment_connection.h"
#include "roles/episodes/episode_backend.h"

namespace retort::launch {

using recipes::RankContext;

std::unique_ptr<roles::SampleBackend> with_episodes(const RankContext& context, ServingRank& rank,
                                                    models::Tokenizer tokenizer,
                                                    std::unique_ptr<roles::SampleBackend> backend) {
  if (!context.recipe.environment || !backend->leads()) return backend;
  // Whatever day this is: a template that prints one is refused without data.template_date.
  const models::ChatTemplate chat = recipes::load_chat(context.recipe);
  const std::shared_ptr<roles::RemoteEnvironment> environment =
      recipes::remote_environment(context);
  rank.connect = [&context, environment](rpc::Agent& agent) -> std::shared_ptr<void> {
    return std::make_shared<recipes::EnvironmentConnection>(context, agent, environment);
  };
  return std::make_unique<roles::EpisodeBackend>(std::move(backend), environment, chat,
                                                 std::move(tokenizer),
                                                 recipes::episode_options(context.recipe, chat));
}

}  // namespace retort::launch
