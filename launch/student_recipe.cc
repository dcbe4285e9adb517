#include "launch/student_recipe.h"

#include <algorithm>

#include "base/deadline.h"

namespace retort::launch {

data::BatchOptions StudentContext::batch_options() const {
  const recipes::TrainOptions& train = recipe().train;
  return {.seed = static_cast<uint64_t>(recipe().seed),
          // unused with tokens_per_batch
          .rows_per_micro_batch = train.per_device_train_batch_size.value_or(1),
          .tokens_per_micro_batch = train.tokens_per_batch.value_or(0),
          .micro_batches = train.gradient_accumulation_steps,
          .rampup_steps = train.batch_size_rampup_steps,
          .max_length = recipe().data.max_length,
          .packing = recipe().data.packing,
          .shuffle = recipe().data.shuffle,
          .dp_rank = world.coordinate().dp,
          .dp_size = world.options().layout.dp};
}

std::vector<int64_t> end_token_ids(const models::ModelConfig& config,
                                   const models::Tokenizer& tokenizer) {
  std::vector<int64_t> ids = config.eos_token_ids;
  const int64_t own = tokenizer.eos_id();
  if (own >= 0 && std::find(ids.begin(), ids.end(), own) == ids.end()) ids.push_back(own);
  return ids;
}

bool ends_pipeline(parallel::World& world) {
  return world.coordinate().pp == world.options().layout.pp - 1;
}

namespace {

// Waits for one rank of a role and connects to it; its name.
std::string connect_rank(StudentContext& context, const std::string& role, int64_t rank,
                         parallel::StoreClient& store, Deadline deadline) {
  const std::string peer = role + "/" + std::to_string(rank);
  context.role.report("waiting", 0, "for " + peer);
  context.agent.connect(peer, store.get("address/" + std::to_string(rank), deadline), deadline);
  return peer;
}

parallel::StoreClient addresses_of(const StudentContext& context, const std::string& role) {
  return {context.role.store_host, context.role.store_port, context.role.store_prefix(role),
          context.recipe().rpc.timeout};
}

// Leader and last stage of each replica.
std::vector<roles::TeacherReplica> connect_replicas(StudentContext& context,
                                                    const std::string& role) {
  const parallel::Layout& layout = context.recipe().roles.at(role).world;
  const Deadline deadline = Deadline::after(context.recipe().rpc.timeout);
  parallel::StoreClient store = addresses_of(context, role);
  std::vector<roles::TeacherReplica> replicas;
  for (int64_t dp = 0; dp < layout.dp; ++dp) {
    const int64_t leader = parallel::rank_of(layout, {.tp = 0, .dp = dp, .pp = 0});
    roles::TeacherReplica replica{.leader = connect_rank(context, role, leader, store, deadline),
                                  .holders = {}};
    for (int64_t tp = 0; tp < layout.tp; ++tp) {
      const int64_t holder = parallel::rank_of(layout, {.tp = tp, .dp = dp, .pp = layout.pp - 1});
      replica.holders.push_back(
          holder == leader ? replica.leader : connect_rank(context, role, holder, store, deadline));
    }
    replicas.push_back(std::move(replica));
  }
  return replicas;
}

}  // namespace

std::vector<std::string> connect_role(StudentContext& context, const std::string& role) {
  const Deadline deadline = Deadline::after(context.recipe().rpc.timeout);
  parallel::StoreClient store = addresses_of(context, role);
  std::vector<std::string> peers;
  for (int64_t rank = 0; rank < context.recipe().roles.at(role).world.world_size(); ++rank)
    peers.push_back(connect_rank(context, role, rank, store, deadline));
  return peers;
}

std::unique_ptr<roles::TeacherClient> connect_frozen(StudentContext& context,
                                                     const std::string& role,
                                                     const roles::PayloadSpec& spec,
                                                     const FrozenClient& options) {
  return std::make_unique<roles::TeacherClient>(
      context.agent,
      roles::TeacherClient::Options{.role = role,
                                    .replicas = connect_replicas(context, role),
                                    .spec = spec,
                                    .timeout = context.recipe().rpc.timeout,
                                    .student_vocab_rows = context.vocab_rows,
                                    .weights_fingerprint = options.weights_fingerprint,
                                    .tp = options.tp},
      context.tokenizer);
}

}  // namespace retort::launch
