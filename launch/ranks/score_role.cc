// A reward model that is one of ours.
#include "base/log.h"
#include "launch/ranks/replica_world.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "models/checkpoint.h"
#include "recipes/run/agent_options.h"
#include "roles/reward/score_server.h"
#include "roles/serving_loop.h"

namespace retort::launch {

using recipes::RankContext;

void run_score_role(const RankContext& context) {
  const recipes::RoleOptions& role = context.role_options();
  const std::unique_ptr<parallel::World> world = make_replica_world(context);
  parallel::World* replica = role.world.tp == 1 ? nullptr : world.get();
  const at::Device device = world ? world->device() : at::Device(at::kCPU);
  context.report("loading", 0, role.model);
  roles::ScoreServer scores(
      replica_leader(context),
      models::load_classifier(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                              {}, replica ? models::Placement::of(*replica) : models::Placement{},
                              device),
      models::Tokenizer::load(role.model), {.world = replica, .folder = role.model});

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, device));
  if (scores.leads()) scores.serve(agent, queue);
  // Only now: whoever finds the address finds a replica that answers.
  if (replica) replica->all().barrier();
  publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto report = [&] {
    context.report("serving", scores.completions_scored(), "completions scored");
  };
  if (scores.leads()) {
    roles::run_serving_loop(
        *queue, context.stop_requested, [&](int64_t) { report(); }, [&] { return scores.work(); });
    scores.stop();
  } else {
    scores.run_replica_rank(report);
  }

  RETORT_LOG(kInfo) << scores.completions_scored() << " completions scored";
  end_serving(*queue, agent);
  context.report("done", scores.completions_scored(), "completions scored");
}

}  // namespace retort::launch
