#include "base/log.h"
#include "launch/ranks/replica_world.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "models/lora/adapter.h"
#include "recipes/lora_checks.h"
#include "recipes/run/agent_options.h"
#include "roles/generator/server.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;
using recipes::RoleOptions;

void run_generator_role(const RankContext& context) {
  const RoleOptions& role = context.role_options();
  const std::unique_ptr<parallel::World> world = make_replica_world(context);
  parallel::World* replica = role.world.tp == 1 ? nullptr : world.get();
  const at::Device device = world ? world->device() : at::Device(at::kCPU);
  models::Decoder decoder = load_role_model(context, replica, device);
  // It changes nothing until the student's factors come.
  if (recipes::pushes_adapter(context.recipe))
    models::attach_new_adapter(decoder, context.recipe.student().lora->config(), /*seed=*/0);
  roles::Generator generator(
      context.name(), std::move(decoder), models::Tokenizer::load(role.model),
      context.recipe.generation->engine(), recipes::base_weights(context.recipe, role));

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, device));
  generator.serve(agent, queue);
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto report = [&] {
    context.report("serving", generator.tokens_drawn(),
                   "tokens drawn, weights " + std::to_string(generator.weight_version()));
  };
  if (generator.leads())
    generator.lead(*queue, context.stop_requested, [&](int64_t) { report(); });
  else
    generator.follow(*queue);  // until the first rank is told to stop

  RETORT_LOG(kInfo) << generator.tokens_drawn() << " tokens drawn in "
                    << generator.requests_served() << " requests";
  end_serving(*queue, agent);
  context.report("done", generator.tokens_drawn(), "tokens drawn");
}

}  // namespace retort::launch
