#include "recipes/rollout/rollout_worker_setup.h"

#include <algorithm>

#include "models/end_tokens.h"
#include "recipes/run/role_connections.h"

namespace retort::recipes {
namespace {

// A stop text that is one special token ends a completion as an end token does: generators match
// stop texts on what is said, without special tokens.
void stop_at_special_tokens(const models::Tokenizer& tokenizer, GenerationOptions& generation,
                            std::vector<int64_t>& end_ids) {
  std::erase_if(generation.stop, [&](const std::string& text) {
    const int32_t id = tokenizer.token_to_id(text);
    const bool special = id >= 0 && tokenizer.decode(std::vector{id}, true).empty();
    if (special && std::find(end_ids.begin(), end_ids.end(), id) == end_ids.end())
      end_ids.push_back(id);
    return special;
  });
}

std::unique_ptr<roles::GeneratorClient> connect(RunContext& context,
                                                const models::Decoder& student) {
  const Recipe& recipe = context.recipe();
  const std::string& role = recipe.generation->role;
  return std::make_unique<roles::GeneratorClient>(
      context.agent,
      roles::GeneratorClient::Options{.role = role,
                                      .peers = connect_role(context, role),
                                      .tp = recipe.roles.at(role).world.tp,
                                      .timeout = recipe.rpc.timeout,
                                      .generation_timeout = recipe.generation->timeout},
      context.tokenizer, student);
}

}  // namespace

std::shared_ptr<RolloutWorker> make_rollout_worker(RunContext& context,
                                                   const roles::Trainer& trainer) {
  const Recipe& recipe = context.recipe();
  const models::Decoder& student = trainer.decoder();
  std::unique_ptr<roles::GeneratorClient> client;
  if (RolloutWorker::needs_client(context.world)) client = connect(context, student);

  GenerationOptions generation = *recipe.generation;
  // One completion for each prompt of a batch, where prompts come from batches.
  if (recipe.distill) generation.num_generations = 1;
  std::vector<int64_t> end_ids = models::end_token_ids(student.config(), context.tokenizer);
  stop_at_special_tokens(context.tokenizer, generation, end_ids);

  return std::make_shared<RolloutWorker>(
      context.world, std::move(client), context.tokenizer,
      RolloutWorker::Options{.generation = std::move(generation),
                             .sync = *recipe.weight_sync,
                             .seed = static_cast<uint64_t>(recipe.seed),
                             .eos_token_ids = std::move(end_ids),
                             .run_folder = context.rank.run_folder});
}

}  // namespace retort::recipes
