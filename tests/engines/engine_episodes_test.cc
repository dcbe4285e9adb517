// Episodes whose turns an engine that is not ours draws.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engines/served/backend.h"
#include "roles/episodes/episode_backend.h"
#include "tests/data/calls_template.h"
#include "tests/engines/model_engine.h"
#include "tests/roles/episode_support.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/folder_fixture.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<int32_t>;
using models::SpanSource;

const Ids kTurn{11, 12, 63};  // of the golden models' words; <eos> is 63

// Says one turn, whatever it is asked.
class OneTurnEngine final : public ModelEngine {
 public:
  using ModelEngine::ModelEngine;
  Future<Drawn> draw(DrawRequest request, Deadline) override {
    prompts.push_back(request.prompt);
    Promise<Drawn> promise;
    promise.set_value({.token_ids = kTurn,
                       .log_probs = {-1, -2, -3},
                       .finish_reason = models::FinishReason::kEos});
    return promise.future();
  }
  std::vector<Ids> prompts;
};

class EngineEpisodesTest : public test::FolderTest {
 protected:
  std::unique_ptr<roles::EpisodeBackend> make() {
    auto tokenizer = models::Tokenizer::load(roles::golden_model());
    auto inner = std::make_unique<EngineBackend>(
        engine, roles::golden_decoder(), tokenizer,
        WeightFiles({.via = WeightRoute::kFolder, .folder = folder_ / "weights"}, "model",
                    roles::golden_model()),
        EngineBackend::Options{.timeout = 100s,
                               .canaries = {.tokens = 64, .tolerance = 1e-4},
                               .drawn = DrawnMeaning::kRaw});
    return std::make_unique<roles::EpisodeBackend>(
        std::move(inner), environment,
        models::ChatTemplate::from_source(test::kCallsTemplate, "", "<eos>"), std::move(tokenizer),
        roles::EpisodeOptions{.max_turns = 4, .max_tokens = 100});
  }

  std::shared_ptr<OneTurnEngine> engine = std::make_shared<OneTurnEngine>(roles::golden_decoder());
  std::shared_ptr<roles::ScriptedEnvironment> environment =
      std::make_shared<roles::ScriptedEnvironment>();
};

// What the engine has said goes back to it as it stands, with the environment's words behind it.
TEST_F(EngineEpisodesTest, ItsTurnsAreAnsweredAndAskedForAgain) {
  environment->user_turns = true;
  environment->tools = "[]";
  environment->on_step = [](const roles::EpisodeTurn& turn) {
    EXPECT_EQ(turn.text, "w11 w12");
    return roles::EpisodeAnswer{.messages = R"([{"role": "user", "content": "w7 w8"}])",
                                .done = turn.turn == 2};
  };
  roles::GenerateRequest request = roles::episode_request(1, 1, 2);
  request.draw.eos_token_ids = {63};
  request.episodes[0].row = R"({"messages": [{"role": "user", "content": "w10"}]})";
  const auto backend = make();
  backend->submit(request);
  const std::vector<roles::FinishedSample> samples = roles::all_of(*backend);
  ASSERT_EQ(samples.size(), 2u);

  const Ids prompt{60, 10, 63, 61, 60}, answer{61, 60, 7, 8, 63, 61, 60};
  Ids second = prompt;
  second.insert(second.end(), kTurn.begin(), kTurn.end());
  second.insert(second.end(), answer.begin(), answer.end());
  Ids whole = second;
  whole.insert(whole.end(), kTurn.begin(), kTurn.end());

  EXPECT_EQ(engine->prompts, (std::vector<Ids>{prompt, prompt, second, second}));
  for (const roles::FinishedSample& sample : samples) {
    const models::Completion& episode = sample.completion;
    EXPECT_EQ(episode.token_ids, whole);
    std::vector<SpanSource> sources;
    for (const models::Span& span : episode.spans)
      sources.push_back(span.source);
    EXPECT_EQ(sources, (std::vector<SpanSource>{SpanSource::kPrompt, SpanSource::kModel,
                                                SpanSource::kEnvironment, SpanSource::kModel}));
    EXPECT_EQ(std::vector<float>(episode.logps.end() - 3, episode.logps.end()),
              (std::vector<float>{-1, -2, -3}));
    EXPECT_EQ(roles::record_of(episode)["reward"], 3.5) << "half of its seed";
  }
  EXPECT_EQ(backend->summary(), "") << "what the engine kept it does not say";
}

}  // namespace
}  // namespace retort::engines
