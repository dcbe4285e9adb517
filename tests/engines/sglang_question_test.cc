// What SGLang is never asked.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engines/sglang/generate_question.h"
#include "engines/sglang/refusal.h"
#include "engines/sglang/served_model.h"
#include "tests/support/thrown.h"

namespace retort::engines::sglang {
namespace {

using nlohmann::json;
using test::expect_refused;

const RequestName kName{.rid = "id", .cache_salt = "salt"};

DrawRequest a_draw() {
  DrawRequest request{.prompt = {1, 2}, .seed = 3};
  request.how.max_new_tokens = 4;
  return request;
}
json params_of(const DrawRequest& request, int64_t vocab_rows = 100) {
  return json::parse(draw_question(request, kName, vocab_rows).body).at("sampling_params");
}

TEST(SglangQuestion, RefusesWhatSglangDoesOtherwise) {
  const auto refused = [](const std::string& part,
                          const std::function<void(DrawRequest&)>& change) {
    DrawRequest request = a_draw();
    change(request);
    expect_refused(part, [&] { params_of(request); });
  };
  refused("temperature", [](DrawRequest& r) { r.how.sampling.temperature = 9e-7; });
  refused("temperature", [](DrawRequest& r) { r.how.sampling.temperature = -1; });
  refused("repetition_penalty", [](DrawRequest& r) { r.how.sampling.repetition_penalty = 1.1; });
  refused("top_k", [](DrawRequest& r) {
    r.how.sampling.top_k = 3;
    r.how.sampling.top_p = 0.9;
  });
  refused("prompt", [](DrawRequest& r) { r.prompt.clear(); });
  refused("max_new_tokens", [](DrawRequest& r) { r.how.max_new_tokens = 0; });
  refused("UTF-8", [](DrawRequest& r) { r.how.stop = {"\xFF"}; });
  refused("typical_p: sglang does not", [](DrawRequest& r) { r.how.sampling.typical_p = 0.9; });
  refused("min_new_tokens: sglang ends", [](DrawRequest& r) {
    r.how.min_new_tokens = 1;
    r.how.stop = {"x"};
  });
  DrawRequest request = a_draw();
  for (const int32_t id : {-1, 100}) {
    request.prompt = {1, id};
    test::expect_error(ErrorCode::kMismatch, "does not know the token id",
                       [&] { params_of(request); });
  }
}

TEST(SglangQuestion, SendsPenaltiesOfWhatWasDrawnAndTheLeastNumber) {
  DrawRequest request = a_draw();
  request.how.sampling.presence_penalty = 0.5;
  request.how.sampling.frequency_penalty = -0.25;
  request.how.min_new_tokens = 2;
  request.how.eos_token_ids = {};
  request.how.stop_token_ids = {5};
  const json params = params_of(request);
  EXPECT_EQ(params.at("presence_penalty"), 0.5);
  EXPECT_EQ(params.at("frequency_penalty"), -0.25);
  EXPECT_EQ(params.at("min_new_tokens"), 2);
  EXPECT_EQ(params.at("stop_token_ids"), json::array({5}));
  EXPECT_EQ(params.at("ignore_eos"), false) << "it would not look for them";
}

TEST(SglangQuestion, SendsTheBitsOfTheSeed) {
  DrawRequest request = a_draw();
  for (const int64_t seed : {int64_t{0}, int64_t{17}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    request.seed = static_cast<uint64_t>(seed);
    EXPECT_EQ(params_of(request).at("sampling_seed").get<int64_t>(), seed);
  }
}

TEST(SglangQuestion, MasksRowsThatAreNoIds) {
  DrawRequest request = a_draw();
  request.how.sampling.num_ids = 10;
  EXPECT_TRUE(params_of(request, 10).at("logit_bias").is_null());
  EXPECT_TRUE(params_of(request, 10 + 1025).at("logit_bias").is_null());
  EXPECT_EQ(params_of(request, 12).at("logit_bias"), (json{{"10", -100.0}, {"11", -100.0}}));
  EXPECT_EQ(params_of(request, 10 + 1024).at("logit_bias").size(), 1024u);
  request.how.sampling.num_ids = 0;
  EXPECT_TRUE(params_of(request, 12).at("logit_bias").is_null());
}

TEST(SglangQuestion, LeavesRoomForItsAnswer) {
  DrawRequest draw = a_draw();
  const uint64_t few = draw_question(draw, kName, 100).body_bytes;
  draw.how.max_new_tokens += 1000;
  EXPECT_GE(draw_question(draw, kName, 100).body_bytes, few + 1000 * 500);

  ScoreRequest score{.token_ids = std::vector<int32_t>(1001, 1), .positions = {999}, .top_k = 64};
  const uint64_t one = score_question(score, kName, 100).body_bytes;
  score.positions = {0, 999};
  const uint64_t all = score_question(score, kName, 100).body_bytes;
  EXPECT_GE(all - one, 998 * 65 * 40) << "of each position from the first on";
}

TEST(SglangQuestion, RefusesPositionsThatAreNone) {
  const auto ask = [](std::vector<int32_t> positions, int64_t top_k = 0) {
    score_question({.token_ids = {5, 6, 7}, .positions = std::move(positions), .top_k = top_k},
                   kName, 100);
  };
  ask({0, 1}, 100);
  expect_refused("positions: there are none", [&] { ask({}); });
  expect_refused("no token after it", [&] { ask({0, 2}); });
  expect_refused("must increase", [&] { ask({1, 1}); });
  expect_refused("top_k", [&] { ask({0}, -1); });
  expect_refused("top_k", [&] { ask({0}, 101); });
}

TEST(SglangRefusal, FindsTheVocabulary) {
  EXPECT_EQ(vocabulary_of("x logit_bias must has keys in [0, 415], got 2147483647."), 416);
  EXPECT_FALSE(vocabulary_of("logit_bias must has keys in [0, x]"));
  EXPECT_FALSE(vocabulary_of("something else"));
}

TEST(SglangRefusal, LeavesOtherErrorsAlone) {
  const Error error = Error(ErrorCode::kUnavailable, "gone").with("status", 500);
  EXPECT_EQ(explained(error).message(), "gone");
  EXPECT_EQ(explained_admin(error).message(), "gone");
}

}  // namespace
}  // namespace retort::engines::sglang
