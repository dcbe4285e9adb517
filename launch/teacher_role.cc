#include "base/log.h"
#include "launch/role_process.h"
#include "models/checkpoint.h"
#include "roles/host.h"
#include "roles/teacher.h"

namespace retort::launch {
namespace {

// The ranks of the role, if several of them hold one model or are to share out devices.
std::unique_ptr<parallel::World> make_world(const RoleContext& context,
                                            const parallel::Layout& layout) {
  if (layout.tp * layout.pp == 1 && layout.device == parallel::Device::kCpu) return nullptr;
  return std::make_unique<parallel::World>(
      parallel::World::Options{.role = context.role,
                               .layout = layout,
                               .rank = context.rank,
                               .store_host = context.store_host,
                               .store_port = context.store_port,
                               .store_prefix = context.store_prefix(context.role) + "world/",
                               .timeout = context.recipe.launch.collective_timeout,
                               .device_module = context.device_module,
                               // Replicas of one rank each
                               // exchange nothing.
                               .device_groups = layout.tp * layout.pp > 1});
}

std::string leader_name(const RoleContext& context, parallel::World* world) {
  return context.role + "/" +
         std::to_string(world == nullptr ? context.rank : world->mp().ranks().front());
}

}  // namespace

void run_teacher_role(const RoleContext& context) {
  const RoleOptions& role = context.recipe.roles.at(context.role);
  const auto world = make_world(context, role.world);
  context.report("loading", 0, role.model);
  // by the ranks that hold one model
  parallel::World* shared = role.world.tp * role.world.pp == 1 ? nullptr : world.get();
  models::Decoder decoder =
      models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                           shared ? models::Placement::of(*shared) : models::Placement{},
                           world ? world->device() : at::Device(at::kCPU));
  roles::Teacher teacher(
      leader_name(context, shared), std::move(decoder), models::Tokenizer::load(role.model),
      {.world = shared,
       .folder = role.model,
       .held = {.lease = 2 * std::chrono::milliseconds(context.recipe.rpc.timeout)}});
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = context.name(), .secret = context.secret, .rpc = context.recipe.rpc});
  teacher.serve(agent, queue,
                role.batching == Batching::kDynamic ? roles::Teacher::Batching::kDynamic
                                                    : roles::Teacher::Batching::kAsSent);
  // Only now: whoever finds the address finds a teacher that answers.
  if (shared) shared->mp().barrier();
  if (teacher.answers()) {
    parallel::StoreClient store(context.store_host, context.store_port,
                                context.store_prefix(context.role),
                                context.recipe.launch.collective_timeout);
    store.set("address/" + std::to_string(context.rank), agent.address());
    RETORT_LOG(kInfo) << "serving " << role.model << " at " << agent.address();
  }
  context.report("serving", 0, "");
  const auto report = [&] {
    context.report("serving", teacher.requests_served(), "requests answered");
  };
  if (teacher.leads()) {
    roles::host(
        *queue, context.stop_requested, [&](int64_t) { report(); }, [&] { return teacher.work(); });
    teacher.stop();
  } else {
    teacher.follow(report);
  }
  RETORT_LOG(kInfo) << teacher.requests_served() << " requests answered by " << teacher.forwards()
                    << " forward passes";
  queue->close();
  agent.close();
  agent.join();
  context.report("done", teacher.requests_served(), "requests answered");
}

}  // namespace retort::launch
