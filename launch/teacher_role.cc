#include "base/log.h"
#include "launch/role_process.h"
#include "models/checkpoint.h"
#include "roles/host.h"
#include "roles/teacher.h"

namespace retort::launch {

void run_teacher_role(const RoleContext& context) {
  const RoleOptions& role = context.recipe.roles.at(context.role);
  context.report("loading", 0, role.model);
  models::Decoder decoder = models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))));
  roles::Teacher teacher(context.name(), std::move(decoder), models::Tokenizer::load(role.model));
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = context.name(), .secret = context.secret, .rpc = context.recipe.rpc});
  teacher.serve(agent, queue,
                role.batching == Batching::kDynamic ? roles::Teacher::Batching::kDynamic : roles::Teacher::Batching::kAsSent);
  parallel::StoreClient store(context.store_host, context.store_port, context.store_prefix(context.role),
                              context.recipe.launch.collective_timeout);
  // Only now: whoever finds the address finds a teacher that answers.
  store.set("address/" + std::to_string(context.rank), agent.address());
  RETORT_LOG(kInfo) << "serving " << role.model << " at " << agent.address();
  context.report("serving", 0, "");
  roles::host(*queue, context.stop_requested,
              [&](int64_t) { context.report("serving", teacher.requests_served(), "requests answered"); });
  RETORT_LOG(kInfo) << teacher.requests_served() << " requests answered by " << teacher.forwards() << " forward passes";
  queue->close();
  agent.close();
  agent.join();
  context.report("done", teacher.requests_served(), "requests answered");
}

}  // namespace retort::launch
