// A judge that is a model of ours.
#include "base/log.h"
#include "launch/ranks/replica_world.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "recipes/rollout/own_reward_roles.h"
#include "recipes/run/agent_options.h"
#include "roles/reward/judge_server.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;

void run_judge_role(const RankContext& context) {
  const std::unique_ptr<parallel::World> world = make_replica_world(context);
  const at::Device device = world ? world->device() : at::Device(at::kCPU);
  const std::unique_ptr<roles::JudgeServer> judge =
      recipes::make_judge(context.recipe, context.role, context.name(),
                          load_role_model(context, /*world=*/nullptr, device));

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, device));
  judge->serve(agent, queue);
  publish_address(context, agent.address());
  context.report("serving", 0, "");
  roles::run_serving_loop(
      *queue, context.stop_requested,
      [&](int64_t) { context.report("serving", judge->texts_answered(), "completions judged"); },
      [&] { return judge->work(); });

  judge->stop();
  RETORT_LOG(kInfo) << judge->texts_answered() << " completions judged";
  end_serving(*queue, agent);
  context.report("done", judge->texts_answered(), "completions judged");
}

}  // namespace retort::launch
