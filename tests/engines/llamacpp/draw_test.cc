// Tests what the adapter asks a llama-server to draw, and what it makes of the answer.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engines/llamacpp/alignment.h"
#include "tests/engines/llamacpp/fake_server.h"
#include "tests/http/requests.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using retort::test::expect_error, retort::test::soon;
using test::completion_of, test::draw_request, test::FakeServer, test::forced_of, test::Json,
    test::json_reply;

// Every sampler is said, so that none of the server's own acts.
TEST(LlamacppDraw, SaysAllThatMatters) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    return json_reply(completion_of(body, {3, 4, 5}));
  });
  const auto engine = server.engine();
  DrawRequest asked = draw_request(3);
  asked.how.sampling = {.temperature = 0.7,
                        .top_p = 0.9,
                        .top_k = 20,
                        .min_p = 0.05,
                        .repetition_penalty = 1.1,
                        .num_ids = 98};
  asked.seed = uint64_t{1} << 60;
  const Drawn drawn = engine->draw(asked, soon()).get();
  EXPECT_EQ(drawn.token_ids, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(drawn.log_probs, (std::vector<float>{-1, -1, -1}));

  const Json body = server.bodies("/completion").front();
  EXPECT_EQ(body["prompt"], (Json{1, 2}));
  EXPECT_EQ(body["samplers"], (Json{"penalties", "temperature", "top_k", "top_p", "min_p"}));
  EXPECT_EQ(body["temperature"], 0.7);
  EXPECT_EQ(body["top_p"], 0.9);
  EXPECT_EQ(body["top_k"], 20);
  EXPECT_EQ(body["min_p"], 0.05);
  EXPECT_EQ(body["repeat_penalty"], 1.1);
  EXPECT_EQ(body["repeat_last_n"], 5);
  EXPECT_EQ(body["n_predict"], 3);
  EXPECT_EQ(body["ignore_eos"], false);
  EXPECT_EQ(body["mirostat"], 0);
  EXPECT_EQ(body["logit_bias"], Json::parse("[[98, false], [99, false]]"));
  EXPECT_LT(body["seed"].get<int64_t>(), int64_t{1} << 31);
  EXPECT_EQ(body["model"], "tiny");
}

// What it counts otherwise, or cannot bar, is refused before anything is sent.
TEST(LlamacppDraw, SaysTypicalAndRefusesWhatItCountsOtherwise) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    return json_reply(completion_of(body, {3, 4, 5}));
  });
  const auto engine = server.engine();
  DrawRequest asked = draw_request(3);
  asked.how.sampling.typical_p = 0.9;
  engine->draw(asked, soon()).get();
  const Json body = server.bodies("/completion").front();
  EXPECT_EQ(body["typical_p"], 0.9);
  EXPECT_EQ(body["samplers"],
            (Json{"penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"}));

  const auto refused = [&](const std::string& part, auto change) {
    DrawRequest other = draw_request(3);
    change(other.how);
    expect_error(ErrorCode::kInvalidArgument, part, [&] { engine->draw(other, soon()).get(); });
  };
  refused("presence_penalty: llama.cpp counts",
          [](models::DrawOptions& how) { how.sampling.presence_penalty = 0.5; });
  refused("frequency_penalty: llama.cpp counts",
          [](models::DrawOptions& how) { how.sampling.frequency_penalty = 0.5; });
  refused("min_new_tokens: llama.cpp bars",
          [](models::DrawOptions& how) { how.min_new_tokens = 1; });
  EXPECT_EQ(server.bodies("/completion").size(), 1u);
}

// An end of the server's own is no end: it goes on from there, with another seed.
TEST(LlamacppDraw, GoesOnAfterForeignEnds) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    if (body["prompt"].size() == 2) return json_reply(completion_of(body, {3, 4}, "eos"));
    return json_reply(completion_of(body, {5, 6, 9}, "eos"));
  });
  const auto engine = server.engine();
  DrawRequest asked = draw_request(8);
  asked.how.eos_token_ids = {6};
  const Drawn drawn = engine->draw(asked, soon()).get();
  EXPECT_EQ(drawn.token_ids, (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(drawn.finish_reason, models::FinishReason::kEos);

  const std::vector<Json> bodies = server.bodies("/completion");
  ASSERT_EQ(bodies.size(), 2u);
  EXPECT_EQ(bodies[1]["prompt"], (Json{1, 2, 3, 4}));
  EXPECT_EQ(bodies[1]["n_predict"], 6);
  EXPECT_NE(bodies[0]["seed"], bodies[1]["seed"]);

  // Nor does it know of a stop text that is a special token.
  std::swap(asked.how.eos_token_ids, asked.how.stop_token_ids);
  const Drawn stopped = engine->draw(asked, soon()).get();
  EXPECT_EQ(stopped.token_ids, drawn.token_ids);
  EXPECT_EQ(stopped.finish_reason, models::FinishReason::kStop);

  asked.how.stop = {"x"};
  expect_error(ErrorCode::kInvalidArgument, "token 4", [&] { engine->draw(asked, soon()).get(); });
}

TEST(LlamacppDraw, AFullContextIsNoLength) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    Json answer = completion_of(body, {3});
    answer["truncated"] = true;
    return json_reply(answer);
  });
  const auto engine = server.engine();
  expect_error(ErrorCode::kInvalidArgument, "context is full",
               [&] { engine->draw(draw_request(4), soon()).get(); });
}

// The server leaves 3 and one 4 out; which 4 it means cannot be told.
TEST(LlamacppDraw, AsksForWhatWasLeftOut) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    Json answer = body["n_predict"] == 1 ? forced_of(body) : completion_of(body, {3, 4, 4, 5});
    Json& list = answer["completion_probabilities"];
    if (body["n_predict"] == 1)
      list[0]["logprob"] = list[0]["top_logprobs"][0]["logprob"] = -0.25;
    else
      list = Json::array({list[1], list[3]});
    return json_reply(answer);
  });
  const auto engine = server.engine();
  const Drawn drawn = engine->draw(draw_request(4), soon()).get();
  EXPECT_EQ(drawn.log_probs, (std::vector<float>{-0.25, -0.25, -0.25, -1}));

  const std::vector<Json> bodies = server.bodies("/completion");
  ASSERT_EQ(bodies.size(), 4u);
  EXPECT_EQ(bodies[1]["prompt"], (Json{1, 2}));
  EXPECT_EQ(bodies[3]["prompt"], (Json{1, 2, 3, 4}));
  EXPECT_EQ(bodies[3]["logit_bias"][0][0], 4);
}

// Ids alone must tell which tokens were left out; -1 marks one without a log-probability.
TEST(LlamacppAlignment, TakesWhatIsCertain) {
  const auto aligned = [](const std::vector<int32_t>& ids, const std::vector<int32_t>& said) {
    std::vector<llamacpp::Chances> chances;
    for (const int32_t id : said)
      chances.push_back({.id = id, .log_prob = -2.0F - static_cast<float>(chances.size())});
    std::vector<int> entries;
    for (const float log_prob : llamacpp::align(ids, chances))
      entries.push_back(std::isnan(log_prob) ? -1 : static_cast<int>(-log_prob) - 2);
    return entries;
  };
  using Entries = std::vector<int>;
  EXPECT_EQ(aligned({3, 4, 5}, {3, 4, 5}), (Entries{0, 1, 2}));
  EXPECT_EQ(aligned({3, 4, 5}, {4, 5}), (Entries{-1, 0, 1}));
  EXPECT_EQ(aligned({3, 4, 5}, {3}), (Entries{0, -1, -1}));
  EXPECT_EQ(aligned({3, 3, 5}, {3, 5}), (Entries{-1, -1, 1}));
  EXPECT_EQ(aligned({3, 4, 3, 5, 3}, {3, 5}), (Entries{-1, -1, -1, 1, -1}));
  EXPECT_EQ(aligned({3, 3, 3}, {3, 3, 3}), (Entries{0, 1, 2}));
  EXPECT_EQ(aligned({3}, {}), (Entries{-1}));
  EXPECT_THROW(aligned({3, 4}, {4, 3}), Error);
  EXPECT_THROW(aligned({3}, {3, 3}), Error);
}

}  // namespace
}  // namespace retort::engines
