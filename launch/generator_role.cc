#include "base/log.h"
#include "launch/role_process.h"
#include "models/checkpoint.h"
#include "roles/generator.h"
#include "roles/host.h"

namespace retort::launch {

void run_generator_role(const RoleContext& context) {
  const RoleOptions& role = context.recipe.roles.at(context.role);
  const recipes::GenerationOptions& generation = *context.recipe.generation;
  context.report("loading", 0, role.model);
  models::Decoder decoder = models::load_decoder(role.model, models::parse_dtype(std::string(enum_name(role.dtype))));
  roles::Generator generator(context.name(), std::move(decoder), models::Tokenizer::load(role.model),
                             {.kv_cache_bytes = static_cast<int64_t>(generation.kv_cache.bytes),
                              .max_tokens_per_step = generation.max_tokens_per_step,
                              .max_sequences = generation.max_sequences});
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = context.name(), .secret = context.secret, .rpc = context.recipe.rpc});
  generator.serve(agent, queue);
  parallel::StoreClient store(context.store_host, context.store_port, context.store_prefix(context.role),
                              context.recipe.launch.collective_timeout);
  store.set("address/" + std::to_string(context.rank), agent.address());
  RETORT_LOG(kInfo) << "generating with " << role.model << " at " << agent.address();
  context.report("serving", 0, "");
  roles::host(
      *queue, context.stop_requested,
      [&](int64_t) {
        context.report("serving", generator.tokens_drawn(),
                       "tokens drawn, weights " + std::to_string(generator.weight_version()));
      },
      [&] { return generator.work(); });
  RETORT_LOG(kInfo) << generator.tokens_drawn() << " tokens drawn in " << generator.requests_served() << " requests";
  queue->close();
  agent.close();
  agent.join();
  context.report("done", generator.tokens_drawn(), "tokens drawn");
}

}  // namespace retort::launch
