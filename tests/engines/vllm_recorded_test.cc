// The adapter asks what was recorded from a real vLLM 0.32.0, and reads every number of its answers
// as a JSON library does.
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/vllm/engine.h"
#include "tests/engines/vllm_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using nlohmann::json;
using test::RecordedVllm, test::soon;

using Vllm = RecordedVllm;

// What `engine` draws is what stands in the recorded answer.
void expect_choice(const Drawn& drawn, const json& choice) {
  EXPECT_EQ(drawn.token_ids, choice.at("token_ids").get<std::vector<int32_t>>());
  EXPECT_EQ(drawn.log_probs, choice.at("logprobs").at("token_logprobs").get<std::vector<float>>());
}

TEST_F(Vllm, SaysWhatItServes) {
  const EngineState state = engine().state(soon()).get();
  EXPECT_EQ(state.version, "0.32.0");
  EXPECT_EQ(state.served_model, "m");
  EXPECT_EQ(state.vocab_rows, 416);
  EXPECT_EQ(state.context_tokens, 128);
  EXPECT_EQ(engine().abilities().max_top_k, 24);
  EXPECT_TRUE(engine().abilities().draws);
  EXPECT_TRUE(engine().abilities().scores);
  EXPECT_FALSE(engine().abilities().hidden_states);

  // What the server refused once is not asked again.
  engine().state(soon()).get();
  const std::vector<std::string> expected{"health",     "version", "models",  "limit-allowed",
                                          "limit-rows", "health",  "version", "models"};
  EXPECT_EQ(server().asked(), expected);
}

TEST_F(Vllm, DrawsUntilTheLength) {
  const Drawn drawn = engine().draw(draw(), soon()).get();
  expect_choice(drawn, choice("draw-length"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kLength);
  EXPECT_EQ(drawn.token_ids.size(), 12u);
}

TEST_F(Vllm, DrawsUntilAnEndToken) {
  DrawRequest request = draw();
  request.how.eos_token_ids.push_back(choice("draw-length").at("token_ids").at(5).get<int>());
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_choice(drawn, choice("draw-end"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kEos);
  EXPECT_EQ(drawn.token_ids.size(), 6u);
  EXPECT_EQ(drawn.token_ids.back(), request.how.eos_token_ids.back());
}

// A stop text that is a special token: the same request as of an end token.
TEST_F(Vllm, DrawsUntilAStopToken) {
  DrawRequest request = draw();
  request.how.stop_token_ids = {choice("draw-length").at("token_ids").at(5).get<int>()};
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_choice(drawn, choice("draw-end"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kStop);
}

TEST_F(Vllm, DrawsUntilAStopString) {
  DrawRequest request = draw();
  request.how.stop = {"uys", "never"};
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_choice(drawn, choice("draw-stop"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kStop);
  EXPECT_EQ(drawn.token_ids.size(), 2u) << "the string ends in the second token";
}

TEST_F(Vllm, SendsEveryOptionOfTheSampling) {
  DrawRequest request = draw();
  request.how.sampling = {
      .temperature = 0.7, .top_p = 0.9, .top_k = 40, .repetition_penalty = 1.2, .num_ids = 400};
  request.seed = static_cast<uint64_t>(-3);
  expect_choice(engine().draw(request, soon()).get(), choice("draw-sampled"));

  request.how.sampling = {.min_p = 0.05, .num_ids = 400};
  request.seed = 5;
  expect_choice(engine().draw(request, soon()).get(), choice("draw-least"));

  request.how.sampling = {.temperature = 0, .num_ids = 400};
  request.seed = 17;
  expect_choice(engine().draw(request, soon()).get(), choice("draw-greedy"));
}

TEST_F(Vllm, NamesEachDraw) {
  engine().draw(draw(), soon()).get();
  const test::Received first = server().last("draw-length");
  engine().draw(draw(), soon()).get();
  const test::Received second = server().last("draw-length");
  EXPECT_EQ(json::parse(first.body).at("request_id"), first.headers.at("x-request-id"));
  EXPECT_NE(first.headers.at("x-request-id"), second.headers.at("x-request-id"));
  EXPECT_EQ(first.headers.at("x-request-id").substr(0, 7), "retort-");
}

TEST_F(Vllm, ScoresGivenTokens) {
  const ScoreRequest request = score({0, 2, 3, 7}, 0);
  const Scored scored = engine().score(request, soon()).get();
  const json rows = choice("score-given").at("prompt_logprobs");
  ASSERT_EQ(scored.given.size(), 4u);
  for (size_t r = 0; r < 4; ++r) {
    const auto token = static_cast<size_t>(request.positions[r]) + 1;
    const std::string id = std::to_string(request.token_ids[token]);
    EXPECT_EQ(scored.given[r], rows.at(token).at(id).at("logprob").get<float>()) << r;
  }
  EXPECT_FALSE(scored.ids.defined());
  EXPECT_FALSE(scored.log_probs.defined());
}

TEST_F(Vllm, ScoresTheMostProbable) {
  const ScoreRequest request = score({1, 4, 7}, 3);
  const Scored scored = engine().score(request, soon()).get();
  const json rows = choice("score-top").at("prompt_logprobs");
  ASSERT_EQ(scored.ids.sizes(), at::IntArrayRef({3, 3}));
  ASSERT_EQ(scored.ids.scalar_type(), at::kInt);
  ASSERT_EQ(scored.log_probs.scalar_type(), at::kFloat);

  for (size_t r = 0; r < 3; ++r) {
    const auto token = static_cast<size_t>(request.positions[r]) + 1;
    const json& row = rows.at(token);
    EXPECT_EQ(scored.given[r],
              row.at(std::to_string(request.token_ids[token])).at("logprob").get<float>());
    for (size_t k = 0; k < 3; ++k) {
      const int32_t id = scored.ids.data_ptr<int32_t>()[3 * r + k];
      const json& entry = row.at(std::to_string(id));
      EXPECT_EQ(entry.at("rank"), k + 1);
      EXPECT_EQ(scored.log_probs.data_ptr<float>()[3 * r + k], entry.at("logprob").get<float>());
    }
  }
}

TEST_F(Vllm, SendsNoMoreThanItScores) {
  ScoreRequest request = score({7}, 0);
  request.token_ids.resize(200, 1);  // more than the context holds
  EXPECT_EQ(engine().score(request, soon()).get().given.size(), 1u);
}

TEST_F(Vllm, SaysWhatTheServerCannot) {
  test::expect_error(ErrorCode::kInvalidArgument, "--max-logprobs 25",
                     [&] { engine().score(score({7}, 25), soon()).get(); });
  test::expect_error(ErrorCode::kMismatch, "does not know a token id", [&] {
    engine().score({.token_ids = {7, 999, 1}, .positions = {1}}, soon()).get();
  });
  DrawRequest request = draw();
  request.how.max_new_tokens = 124;
  test::expect_error(ErrorCode::kInvalidArgument, "--max-model-len",
                     [&] { engine().draw(request, soon()).get(); });
  const ScoreRequest long_one{.token_ids = std::vector<int32_t>(128, 7), .positions = {126}};
  test::expect_error(ErrorCode::kInvalidArgument, "--max-model-len",
                     [&] { engine().score(long_one, soon()).get(); });
}

TEST_F(Vllm, LoadsAFolder) {
  engine().load_weights(weights(), soon()).get();
  const std::vector<std::string> expected{"reload", "reset",         "health",     "version",
                                          "models", "limit-allowed", "limit-rows", "tiny"};
  EXPECT_EQ(server().asked(), expected);
}

TEST_F(Vllm, SendsNothingForAFolderThatIsNone) {
  test::expect_error(ErrorCode::kInvalidArgument, "is no folder",
                     [&] { engine().load_weights(weights() + "/none", soon()).get(); });
  EXPECT_TRUE(server().asked().empty());
}

}  // namespace
}  // namespace retort::engines
