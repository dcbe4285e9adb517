#include "launch/student_recipe.h"

#include <algorithm>

#include "base/deadline.h"

namespace retort::launch {

data::BatchOptions StudentContext::batch_options() const {
  const recipes::TrainOptions& train = recipe().train;
  return {.seed = static_cast<uint64_t>(recipe().seed),
          .rows_per_micro_batch = train.per_device_train_batch_size.value_or(1),  // unused with tokens_per_batch
          .tokens_per_micro_batch = train.tokens_per_batch.value_or(0),
          .micro_batches = train.gradient_accumulation_steps,
          .max_length = recipe().data.max_length,
          .packing = recipe().data.packing,
          .shuffle = recipe().data.shuffle,
          .dp_rank = world.coordinate().dp,
          .dp_size = world.options().layout.dp};
}

std::vector<int64_t> end_token_ids(const models::ModelConfig& config, const models::Tokenizer& tokenizer) {
  std::vector<int64_t> ids = config.eos_token_ids;
  const int64_t own = tokenizer.eos_id();
  if (own >= 0 && std::find(ids.begin(), ids.end(), own) == ids.end()) ids.push_back(own);
  return ids;
}

std::vector<std::string> connect_role(StudentContext& context, const std::string& role) {
  const Recipe& recipe = context.recipe();
  const Deadline deadline = Deadline::after(recipe.rpc.timeout);
  parallel::StoreClient store(context.role.store_host, context.role.store_port, context.role.store_prefix(role),
                              recipe.rpc.timeout);
  std::vector<std::string> peers;
  for (int64_t i = 0; i < recipe.roles.at(role).world.world_size(); ++i) {
    const std::string peer = role + "/" + std::to_string(i);
    context.role.report("waiting", 0, "for " + peer);
    context.agent.connect(peer, store.get("address/" + std::to_string(i), deadline), deadline);
    peers.push_back(peer);
  }
  return peers;
}

std::unique_ptr<roles::TeacherClient> connect_frozen(StudentContext& context, const std::string& role,
                                                     const roles::PayloadSpec& spec, bool weights_fingerprint) {
  return std::make_unique<roles::TeacherClient>(context.agent,
                                                roles::TeacherClient::Options{.role = role,
                                                                              .replicas = connect_role(context, role),
                                                                              .spec = spec,
                                                                              .timeout = context.recipe().rpc.timeout,
                                                                              .student_vocab_rows = context.vocab_rows,
                                                                              .weights_fingerprint = weights_fingerprint},
                                                context.tokenizer);
}

}  // namespace retort::launch
