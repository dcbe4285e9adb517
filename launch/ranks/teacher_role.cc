#include "base/log.h"
#include "launch/ranks/replica_world.h"
#include "launch/ranks/served_calls.h"
#include "launch/ranks/serving_roles.h"
#include "recipes/run/agent_options.h"
#include "roles/serving_loop.h"
#include "roles/teacher/server.h"

namespace retort::launch {

using recipes::RankContext;
using recipes::RoleOptions;

namespace {

roles::Teacher make_teacher(const RankContext& context, parallel::World* replica,
                            at::Device device) {
  const RoleOptions& role = context.role_options();
  return {replica_leader(context),
          load_role_model(context, replica, device),
          models::Tokenizer::load(role.model),
          {.world = replica,
           .folder = role.model,
           .store = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)},
           .answers_on_device = recipes::has_device_map(context.recipe, context.role)}};
}

}  // namespace

void run_teacher_role(const RankContext& context) {
  const RoleOptions& role = context.role_options();
  const auto world = make_replica_world(context);
  parallel::World* replica = role.world.tp * role.world.pp == 1 ? nullptr : world.get();
  const at::Device device = world ? world->device() : at::Device(at::kCPU);
  roles::Teacher teacher = make_teacher(context, replica, device);

  auto queue = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent(recipes::agent_options(context, device));
  teacher.serve(agent, queue,
                role.batching == recipes::Batching::kDynamic ? roles::Teacher::Batching::kDynamic
                                                             : roles::Teacher::Batching::kAsSent);
  // Only now: whoever finds the address finds a replica that answers.
  if (replica) replica->all().barrier();
  if (teacher.answers()) publish_address(context, agent.address());

  context.report("serving", 0, "");
  const auto report = [&] {
    context.report("serving", teacher.requests_served(), "requests answered");
  };
  if (teacher.leads()) {
    roles::run_serving_loop(
        *queue, context.stop_requested, [&](int64_t) { report(); }, [&] { return teacher.work(); });
    teacher.stop();
  } else {
    teacher.run_replica_rank(report);
  }

  RETORT_LOG(kInfo) << teacher.requests_served() << " requests answered by " << teacher.forwards()
                    << " forward passes";
  end_serving(*queue, agent);
  context.report("done", teacher.requests_served(), "requests answered");
}

}  // namespace retort::launch
