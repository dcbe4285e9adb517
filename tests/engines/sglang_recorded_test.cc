// The adapter asks what SGLang 0.5.23 takes, and reads every number of its answers as a JSON
// library does. No server gave them: they were built from the release's own code (make_sglang.py,
// which names its files and lines).
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/sglang/engine.h"
#include "tests/engines/sglang_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using nlohmann::json;
using test::soon;

using Sglang = test::RecordedSglang;

// What `engine` draws is what stands in the answer.
void expect_output(const Drawn& drawn, const json& answer) {
  EXPECT_EQ(drawn.token_ids, answer.at("output_ids").get<std::vector<int32_t>>());
  std::vector<float> log_probs;
  for (const json& entry : answer.at("meta_info").at("output_token_logprobs"))
    log_probs.push_back(entry.at(0).get<float>());
  EXPECT_EQ(drawn.log_probs, log_probs);
}

TEST_F(Sglang, SaysWhatItServes) {
  EXPECT_FALSE(engine().abilities().scores) << "nobody asked it yet";
  const EngineState state = engine().state(soon()).get();
  EXPECT_EQ(state.version, "0.5.23");
  EXPECT_EQ(state.served_model, "/models/tiny");
  EXPECT_EQ(state.vocab_rows, 416);
  EXPECT_EQ(state.context_tokens, 122);
  EXPECT_EQ(engine().abilities().max_top_k, 416);
  EXPECT_TRUE(engine().abilities().draws);
  EXPECT_TRUE(engine().abilities().scores);
  EXPECT_TRUE(engine().abilities().seeds) << "it runs with --enable-deterministic-inference";
  EXPECT_FALSE(engine().abilities().hidden_states);

  // The vocabulary is read from a refusal, once: it is not asked for again.
  engine().state(soon()).get();
  const std::vector<std::string> expected{"ready", "model", "server", "vocabulary",
                                          "ready", "model", "server"};
  EXPECT_EQ(server().asked(), expected);
}

TEST_F(Sglang, HasSeedsWhereTheServerIsDeterministic) {
  std::string body = exchange("server").answer.at("body").get<std::string>();
  const std::string flag = "\"enable_deterministic_inference\":true";
  body.replace(body.find(flag), flag.size(), "\"enable_deterministic_inference\":false");
  server().answer("server", test::reply(200, body));
  engine().state(soon()).get();
  EXPECT_FALSE(engine().abilities().seeds);
  EXPECT_TRUE(engine().abilities().draws);
}

TEST_F(Sglang, DrawsUntilTheLength) {
  const Drawn drawn = engine().draw(draw(), soon()).get();
  expect_output(drawn, answer("draw-length"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kLength);
  EXPECT_EQ(drawn.token_ids.size(), 12u);
  std::vector<std::string> expected = first();
  expected.push_back("draw-length");
  EXPECT_EQ(server().asked(), expected);
}

TEST_F(Sglang, DrawsUntilAnEndToken) {
  DrawRequest request = draw();
  request.how.eos_token_ids.push_back(160);
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_output(drawn, answer("draw-end"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kEos);
  EXPECT_EQ(drawn.token_ids.back(), 160);
}

// A stop text that is a special token: the same request as of an end token.
TEST_F(Sglang, DrawsUntilAStopToken) {
  DrawRequest request = draw();
  request.how.stop_token_ids = {160};
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_output(drawn, answer("draw-end"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kStop);
}

TEST_F(Sglang, DrawsUntilAStopString) {
  DrawRequest request = draw();
  request.how.stop = {"uys", "never"};
  const Drawn drawn = engine().draw(request, soon()).get();
  expect_output(drawn, answer("draw-stop"));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kStop);
  EXPECT_EQ(drawn.token_ids.size(), 2u);
}

TEST_F(Sglang, SendsEveryOptionOfTheSampling) {
  DrawRequest request = draw();
  request.how.sampling = {.temperature = 0.7, .top_p = 0.9, .num_ids = 400};
  request.seed = static_cast<uint64_t>(-3);
  expect_output(engine().draw(request, soon()).get(), answer("draw-sampled"));

  request.how.sampling = {.top_k = 40, .min_p = 0.05, .num_ids = 400};
  request.seed = 5;
  expect_output(engine().draw(request, soon()).get(), answer("draw-least"));

  request.how.sampling = {.temperature = 0, .num_ids = 400};
  request.seed = 17;
  expect_output(engine().draw(request, soon()).get(), answer("draw-greedy"));

  // Without end tokens in the request the server does not look for its own either.
  request = draw();
  request.how.eos_token_ids = {};
  request.seed = 21;
  expect_output(engine().draw(request, soon()).get(), answer("draw-endless"));
}

TEST_F(Sglang, NamesEachRequest) {
  const auto name_of = [&](const std::string& name) {
    return json::parse(server().last(name).body).at("rid").get<std::string>();
  };
  engine().draw(draw(), soon()).get();
  const std::string first = name_of("draw-length");
  engine().draw(draw(), soon()).get();
  EXPECT_NE(name_of("draw-length"), first);
  EXPECT_EQ(first.substr(0, 7), "retort-");
  EXPECT_TRUE(json::parse(server().last("draw-length").body).at("cache_salt").is_null());
}

TEST_F(Sglang, ScoresGivenTokens) {
  const ScoreRequest request = score({0, 2, 3, 7}, 0);
  const Scored scored = engine().score(request, soon()).get();
  const json rows = answer("score-given").at("meta_info").at("input_token_logprobs");
  ASSERT_EQ(scored.given.size(), 4u);
  for (size_t r = 0; r < 4; ++r) {
    const auto token = static_cast<size_t>(request.positions[r]) + 1;
    EXPECT_EQ(scored.given[r], rows.at(token).at(0).get<float>()) << r;
  }
  EXPECT_FALSE(scored.ids.defined());
  EXPECT_FALSE(scored.log_probs.defined());
}

// Row by row, as a JSON library reads them.
void expect_top(const Scored& scored, const ScoreRequest& request, const json& info) {
  ASSERT_EQ(scored.ids.sizes(), at::IntArrayRef({3, 3}));
  ASSERT_EQ(scored.ids.scalar_type(), at::kInt);
  ASSERT_EQ(scored.log_probs.scalar_type(), at::kFloat);
  for (size_t r = 0; r < 3; ++r) {
    const auto row = static_cast<size_t>(request.positions[r] + 1 - request.positions[0]);
    EXPECT_EQ(scored.given[r], info.at("input_token_logprobs").at(row).at(0).get<float>());
    for (size_t k = 0; k < 3; ++k) {
      const json& entry = info.at("input_top_logprobs").at(row).at(k);
      EXPECT_EQ(scored.ids.const_data_ptr<int32_t>()[3 * r + k], entry.at(1).get<int32_t>());
      EXPECT_EQ(scored.log_probs.const_data_ptr<float>()[3 * r + k], entry.at(0).get<float>());
    }
  }
}

// The nested list is what SGLang falls back to where rows are ragged; both say the same here.
TEST_F(Sglang, ScoresTheMostProbableFlatAndNested) {
  const ScoreRequest request = score({1, 4, 7}, 3);
  const json info = answer("score-nested").at("meta_info");
  ASSERT_TRUE(answer("score-top").at("meta_info").contains("input_top_logprobs_val_flat_b64"));
  expect_top(engine().score(request, soon()).get(), request, info);
  server().answer("score-top", exchange("score-nested").reply());
  expect_top(engine().score(request, soon()).get(), request, info);
}

// SGLang calls the highest id and what lies above by 0 (logprob_result_processor.py:54).
TEST_F(Sglang, KnowsTheHighestIdAgain) {
  const Scored scored =
      engine().score({.token_ids = {7, 415, 414, 3}, .positions = {0, 1, 2}}, soon()).get();
  const json rows = answer("score-clipped").at("meta_info").at("input_token_logprobs");
  EXPECT_EQ(rows.at(1).at(1), 0);
  EXPECT_EQ(rows.at(2).at(1), 414);
  EXPECT_EQ(scored.given[0], rows.at(1).at(0).get<float>());
}

TEST_F(Sglang, SendsNoMoreThanItScores) {
  ScoreRequest request = score({0, 2, 3, 7}, 0);
  request.token_ids.resize(200, 1);  // more than the context holds
  EXPECT_EQ(engine().score(request, soon()).get().given.size(), 4u);
}

TEST_F(Sglang, SaysWhatTheServerCannot) {
  test::expect_error(ErrorCode::kInvalidArgument, "416 ids",
                     [&] { engine().score(score({7}, 417), soon()).get(); });
  test::expect_error(ErrorCode::kMismatch, "does not know the token id 416", [&] {
    engine().score({.token_ids = {7, 416, 1}, .positions = {1}}, soon()).get();
  });
  DrawRequest request = draw();
  request.how.max_new_tokens = 118;
  test::expect_error(ErrorCode::kInvalidArgument, "--context-length",
                     [&] { engine().draw(request, soon()).get(); });
  const ScoreRequest long_one{.token_ids = std::vector<int32_t>(123, 7), .positions = {121}};
  test::expect_error(ErrorCode::kInvalidArgument, "--context-length",
                     [&] { engine().score(long_one, soon()).get(); });
  EXPECT_EQ(server().asked(), first()) << "none of them was sent";

  server().answer("draw-length", exchange("too-long").reply());
  test::expect_error(ErrorCode::kInvalidArgument, "larger --context-length",
                     [&] { engine().draw(draw(), soon()).get(); });
}

TEST_F(Sglang, LoadsAFolder) {
  engine().load_weights(weights(), soon()).get();
  const std::vector<std::string> expected{"update", "flush",  "model",      "ready",
                                          "model",  "server", "vocabulary", "tiny"};
  EXPECT_EQ(server().asked(), expected);
  const json update = json::parse(server().last("update").body);
  EXPECT_EQ(update.at("model_path"), weights());
  const auto version = update.at("weight_version").get<std::string>();
  EXPECT_EQ(json::parse(server().last("tiny").body).at("cache_salt"), version);

  // Another version, another cache.
  engine().load_weights(weights(), soon()).get();
  EXPECT_NE(json::parse(server().last("tiny").body).at("cache_salt"), version);
  engine().draw(draw(), soon()).get();
}

TEST_F(Sglang, SendsNothingForAFolderThatIsNone) {
  test::expect_error(ErrorCode::kInvalidArgument, "is no folder",
                     [&] { engine().load_weights(weights() + "/none", soon()).get(); });
  std::filesystem::remove(folder_ / "weights/model.safetensors");
  EXPECT_TRUE(test::thrown([&] { engine().load_weights(weights(), soon()).get(); }).has_value());
  EXPECT_TRUE(server().asked().empty());
}

TEST_F(Sglang, SendsItsKey) {
  const auto engine = make({}, "secret");
  engine->state(soon()).get();
  for (const std::string name : {"ready", "model", "server", "vocabulary"})
    EXPECT_EQ(server().last(name).headers.at("authorization"), "Bearer secret") << name;
}

}  // namespace
}  // namespace retort::engines
