#include "recipes/rollout/rollout_worker_setup.h"

#include "recipes/roles/adapter.h"
#include "recipes/roles/external_roles.h"
#include "recipes/rollout/draw_options.h"
#include "recipes/rollout/rollout_worker.h"
#include "recipes/run/rank/agent_options.h"
#include "recipes/run/rank/role_connections.h"

namespace retort::recipes {
namespace {

std::unique_ptr<roles::GeneratorClient> connect(RunContext& context,
                                                const models::Decoder& student) {
  const Recipe& recipe = context.recipe();
  const std::string& role = recipe.generation->role;
  return std::make_unique<roles::GeneratorClient>(
      context.agent,
      roles::GeneratorClient::Options{.role = role,
                                      .peers = connect_role(context, role),
                                      .tp = recipe.roles.at(role).world.tp,
                                      .timeout = recipe.rpc.timeout,
                                      .generation_timeout = recipe.generation->timeout,
                                      .links = links_to(context, role),
                                      .patience = load_timeout_of(recipe, role),
                                      .weights_on_device = has_device_map(recipe, role),
                                      .adapter_alone = pushes_adapter(recipe),
                                      .base_weights = base_weights(recipe, recipe.student())},
      context.tokenizer, student);
}

}  // namespace

std::shared_ptr<SampleSource> make_rollout_worker(RunContext& context,
                                                  const roles::Trainer& trainer) {
  const models::Decoder& student = trainer.decoder();
  std::unique_ptr<roles::GeneratorClient> client;
  if (RolloutWorker::needs_client(context.world)) client = connect(context, student);

  return std::make_shared<RolloutWorker>(
      context.world, std::move(client), context.tokenizer,
      rollout_options(context.recipe(), student.config(), context.tokenizer));
}

}  // namespace retort::recipes
