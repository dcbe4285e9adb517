// A completion that is drawn piece by piece has the bits of one that is drawn at once, whatever of
// it is still in the cache; and the turns of an episode find their history there.
#include "models/generation/engine.h"

#include "tests/models/engine_support.h"

namespace retort::models {
namespace {

constexpr int64_t kNewTokens = 40;

// One layer sees all tokens, the other the newest: both must find them where they were.
ModelConfig windowed_config() {
  ModelConfig config = engine_config();
  config.max_position_embeddings = 1024;
  config.sliding_window = {0, 24};
  return config;
}

GenerationRequest whole_request(const SamplingOptions& sampling) {
  return {.prompts = {engine_tokens(21, 5)},
          .sample_ids = {77},
          .draw = {.sampling = sampling, .max_new_tokens = kNewTokens}};
}

// The same sample, whose first `cut` tokens are part of the prompt.
GenerationRequest rest_of(const GenerationRequest& whole, const Completion& drawn, size_t cut) {
  GenerationRequest rest = whole;
  const auto first = drawn.token_ids.begin();
  rest.prompts[0].insert(rest.prompts[0].end(), first, first + static_cast<ptrdiff_t>(cut));
  rest.draw.max_new_tokens -= static_cast<int64_t>(cut);
  return rest;
}

Completion without_first(Completion whole, size_t cut) {
  const auto drop = [cut](auto& values) {
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(cut));
  };
  drop(whole.token_ids);
  drop(whole.logps);
  drop(whole.sampling_logps);
  return whole;
}

class ContinuedCompletion : public testing::Test {
 protected:
  const Decoder decoder = Decoder::random(windowed_config(), 7, at::kFloat);
};

// The cuts lie inside blocks, at their borders and beside them: 21 + 11 and 21 + 27 tokens fill
// blocks of 16.
TEST_F(ContinuedCompletion, HasTheBitsOfAnUninterruptedOne) {
  const SamplingOptions kinds[] = {{.temperature = 1, .seed = 3},
                                   {.temperature = 0.9, .top_p = 0.95, .seed = 3},
                                   {.temperature = 0.8, .repetition_penalty = 1.3, .seed = 3},
                                   {.temperature = 0}};
  for (const SamplingOptions& kind : kinds) {
    const GenerationRequest whole = whole_request(kind);
    for (const EngineOptions& options :
         {EngineOptions{.num_blocks = 20}, EngineOptions{.block_tokens = 32, .num_blocks = 10},
          EngineOptions{.num_blocks = 20, .max_tokens_per_step = 7, .max_sequences = 3},
          EngineOptions{.num_blocks = 20, .share_prefixes = false}}) {
      Engine engine(decoder, options);
      const Completion drawn = engine.run(whole).at(0);
      ASSERT_EQ(drawn.token_ids.size(), static_cast<size_t>(kNewTokens));

      for (const size_t cut : {1, 10, 11, 12, 26, 27, 28, 39}) {
        const std::string what = "cut at " + std::to_string(cut);
        const GenerationRequest rest = rest_of(whole, drawn, cut);
        const std::vector<Completion> expected{without_first(drawn, cut)};
        const int64_t before = engine.stats().reused_tokens;
        expect_same_bits(engine.run(rest), expected, what + ", where it was drawn");
        const auto length = static_cast<int64_t>(rest.prompts[0].size());
        EXPECT_EQ(engine.stats().reused_tokens > before,
                  options.share_prefixes && length > options.block_tokens)
            << what;
        expect_same_bits(Engine(decoder, options).run(rest), expected, what + ", elsewhere");
      }
    }
  }
}

// Other noise draws something else, so that the comparison above would see it.
TEST_F(ContinuedCompletion, IsOfItsSample) {
  const GenerationRequest whole = whole_request({.temperature = 1, .seed = 3});
  Engine engine(decoder, {.num_blocks = 20});
  const Completion drawn = engine.run(whole).at(0);
  GenerationRequest other = rest_of(whole, drawn, 12);
  other.sample_ids = {78};
  EXPECT_NE(engine.run(other).at(0).token_ids, without_first(drawn, 12).token_ids);
}

// Other prompts have taken the blocks of the history meanwhile, or some of them.
TEST_F(ContinuedCompletion, HasTheSameBitsOnceItsBlocksAreGone) {
  const GenerationRequest whole = whole_request({.temperature = 0.9, .seed = 3});
  const Completion drawn = Engine(decoder, {.num_blocks = 20}).run(whole).at(0);
  const std::vector<Completion> expected{without_first(drawn, 30)};
  int64_t kept = 0;
  for (const size_t between : {40, 90, 120}) {
    Engine engine(decoder, {.num_blocks = 8});
    engine.run(whole);
    engine.run({.prompts = {engine_tokens(between, 9)},
                .draw = {.sampling = {.temperature = 0}, .max_new_tokens = 1}});
    const int64_t before = engine.stats().reused_tokens;
    expect_same_bits(engine.run(rest_of(whole, drawn, 30)), expected, std::to_string(between));
    const int64_t reused = engine.stats().reused_tokens - before;
    if (between > 40) {
      EXPECT_LT(reused, kept) << "the more blocks others took, the fewer are left";
    }
    kept = reused;
  }
  EXPECT_EQ(kept, 0);
}

// Episodes that take turns: what the model said, what answered it, and on from there.
constexpr size_t kEpisodes = 4, kTurns = 6;

struct Turns {
  std::vector<std::vector<Completion>> drawn;  // by turn and episode
  int64_t history = 0;                         // tokens before the answers of all later turns
};

Turns play(Engine& engine) {
  Turns turns;
  std::vector<std::vector<int32_t>> ids;
  for (size_t e = 0; e < kEpisodes; ++e)
    ids.push_back(engine_tokens(150 + 9 * e, static_cast<uint32_t>(e)));
  for (size_t turn = 0; turn < kTurns; ++turn) {
    turns.drawn.emplace_back();
    for (size_t e = 0; e < kEpisodes; ++e) {
      if (turn > 0) {
        turns.history += static_cast<int64_t>(ids[e].size());
        const auto answer = engine_tokens(37, static_cast<uint32_t>(100 * turn + e));
        ids[e].insert(ids[e].end(), answer.begin(), answer.end());
      }
      std::vector<Completion> one =
          engine.run({.prompts = {ids[e]},
                      .sample_ids = {e},
                      .draw = {.sampling = {.temperature = 1, .seed = 6}, .max_new_tokens = 25}});
      ids[e].insert(ids[e].end(), one[0].token_ids.begin(), one[0].token_ids.end());
      turns.drawn.back().push_back(std::move(one[0]));
    }
  }
  return turns;
}

void expect_same_turns(const Turns& turns, const Turns& expected, const std::string& engine) {
  for (size_t turn = 0; turn < kTurns; ++turn)
    expect_same_bits(turns.drawn[turn], expected.drawn[turn],
                     engine + ", turn " + std::to_string(turn));
}

TEST_F(ContinuedCompletion, TheHistoryOfAnEpisodeIsKeptOrComputedAgain) {
  Engine plain(decoder, {.num_blocks = 150, .share_prefixes = false});
  const Turns expected = play(plain);
  EXPECT_EQ(plain.stats().reused_tokens, 0);

  // All but the last token that was drawn, which nobody has computed, and what fills no block.
  Engine engine(decoder, {.num_blocks = 150});
  const Turns turns = play(engine);
  expect_same_turns(turns, expected, "large");
  const int64_t reused = engine.stats().reused_tokens;
  EXPECT_GE(static_cast<double>(reused), 0.95 * static_cast<double>(turns.history));
  EXPECT_LT(reused, turns.history);
  EXPECT_LT(engine.stats().rows, plain.stats().rows / 3);

  // What did not fit is computed again: an episode has 32 blocks in the end.
  Engine small(decoder, {.num_blocks = 40});
  expect_same_turns(play(small), expected, "small");
  EXPECT_LT(small.stats().reused_tokens, turns.history / 2);
}

}  // namespace
}  // namespace retort::models
