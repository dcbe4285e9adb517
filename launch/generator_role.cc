#include "base/log.h"
#include "launch/role_process.h"
#include "models/checkpoint.h"
#include "parallel/world.h"
#include "roles/generator.h"
#include "roles/host.h"

namespace retort::launch {

namespace {

// The ranks of one replica; nothing for a replica of one rank. Replicas share no group, so that one
// that is lost takes no other along.
std::unique_ptr<parallel::World> replica_world(const RoleContext& context) {
  parallel::Layout layout = context.recipe.roles.at(context.role).world;
  const int64_t replica = context.rank / layout.tp;
  if (layout.tp == 1) return nullptr;
  layout.dp = 1;
  return std::make_unique<parallel::World>(parallel::World::Options{
      .role = context.role,
      .layout = layout,
      .rank = context.rank % layout.tp,
      .store_host = context.store_host,
      .store_port = context.store_port,
      .store_prefix =
          context.store_prefix(context.role) + "replica-" + std::to_string(replica) + "/",
      .timeout = context.recipe.launch.collective_timeout});
}

}  // namespace

void run_generator_role(const RoleContext& context) {
  const RoleOptions& role = context.recipe.roles.at(context.role);
  const recipes::GenerationOptions& generation = *context.recipe.generation;
  const std::unique_ptr<parallel::World> world = replica_world(context);
  context.report("loading", 0, role.model);
  models::Decoder decoder =
      models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))),
                           world ? models::Placement::of(*world) : models::Placement{});
  roles::Generator generator(context.name(), std::move(decoder),
                             models::Tokenizer::load(role.model),
                             {.kv_cache_bytes = static_cast<int64_t>(generation.kv_cache.bytes),
                              .max_tokens_per_step = generation.max_tokens_per_step,
                              .max_sequences = generation.max_sequences});
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = context.name(), .secret = context.secret, .rpc = context.recipe.rpc});
  generator.serve(agent, queue);
  parallel::StoreClient store(context.store_host, context.store_port,
                              context.store_prefix(context.role),
                              context.recipe.launch.collective_timeout);
  store.set("address/" + std::to_string(context.rank), agent.address());
  RETORT_LOG(kInfo) << "generating with " << role.model << " at " << agent.address();
  const auto report = [&] {
    context.report("serving", generator.tokens_drawn(),
                   "tokens drawn, weights " + std::to_string(generator.weight_version()));
  };
  context.report("serving", 0, "");
  if (generator.leads()) {
    roles::host(
        *queue, context.stop_requested, [&](int64_t) { report(); },
        [&] { return generator.work(); });
    generator.stop();
  } else {
    generator.follow(*queue);  // until the first rank is told to stop
  }
  RETORT_LOG(kInfo) << generator.tokens_drawn() << " tokens drawn in "
                    << generator.requests_served() << " requests";
  queue->close();
  agent.close();
  agent.join();
  context.report("done", generator.tokens_drawn(), "tokens drawn");
}

}  // namespace retort::launch
