// Episodes of a replica of several ranks: its first rank has them, and the others hear from it
// while all of them wait for their environment.
#include "tests/parallel/rank_process.h"
#include "tests/roles/episode_support.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

using parallel::World;
using parallel::testing::require;

models::Decoder split_decoder(const models::Placement& placement = {}) {
  models::ModelConfig config = nano_model(models::Family::kQwen3, false, 2);
  config.vocab_size = 300;
  config.max_position_embeddings = 512;
  return models::Decoder::random(config, 3, at::kFloat, placement);
}
std::unique_ptr<ReplicaEngine> replica_of(models::Decoder decoder) {
  return std::make_unique<ReplicaEngine>(std::move(decoder), tool_tokenizer(),
                                         models::EngineOptions{.num_blocks = 64});
}
// Turns of a few tokens, each of which is answered, as any of half the tokens ends one.
GenerateRequest short_turns() {
  GenerateRequest request = episode_request(1, 1, 3);
  for (int64_t id = 3; id < 300; id += 2)
    request.draw.eos_token_ids.push_back(id);
  return request;
}
std::shared_ptr<ScriptedEnvironment> talking_environment() {
  auto environment = std::make_shared<ScriptedEnvironment>();
  environment->user_turns = true;
  environment->tools = "[]";
  return environment;
}
constexpr EpisodeOptions kOptions{.max_turns = 4, .max_tokens = 200};

std::vector<FinishedSample> drawn_by_one_rank() {
  const auto backend = episodes_over(replica_of(split_decoder()), talking_environment(), kOptions);
  backend->submit(short_turns());
  return all_of(*backend);
}

// For a second nothing is drawn, and the other ranks hear that nothing is to be done.
void wait_together(std::unique_ptr<ReplicaEngine> replica) {
  if (!replica->leads()) {
    int64_t calls = 0;
    while (replica->follow())
      ++calls;
    return require(calls >= 10, "the first rank was silent");
  }
  const auto environment = talking_environment();
  environment->hangs = [](const std::string& verb, uint64_t) { return verb == "open"; };
  EpisodeOptions options = kOptions;
  options.timeout = options.episode_timeout = Duration(1000);
  options.restarts = 0;
  const auto backend = episodes_over(std::move(replica), environment, options);
  backend->submit(short_turns());
  for (const FinishedSample& sample : all_of(*backend))
    require(record_of(sample.completion).contains("unscorable"), "it never opened");
  backend->stop();
}

void draw_together(std::unique_ptr<ReplicaEngine> replica) {
  if (!replica->leads()) {
    while (replica->follow()) {
    }
    return;
  }
  const auto backend = episodes_over(std::move(replica), talking_environment(), kOptions);
  backend->submit(short_turns());
  const std::vector<FinishedSample> samples = all_of(*backend);
  backend->stop();
  const std::vector<FinishedSample> expected = drawn_by_one_rank();
  require(samples.size() == expected.size(), "as many episodes");
  for (size_t i = 0; i < samples.size(); ++i) {
    require(samples[i].completion.token_ids == expected[i].completion.token_ids, "tokens");
    require(samples[i].completion.spans == expected[i].completion.spans, "spans");
    require(record_of(samples[i].completion)["reward"] == 3.5, "reward");
  }
}

}  // namespace

void episodes_scenario() {
  World world(parallel::testing::child_world_options("episodes", {.tp = 2}));
  wait_together(replica_of(split_decoder(models::Placement::of(world))));
  draw_together(replica_of(split_decoder(models::Placement::of(world))));
}

}  // namespace retort::roles
