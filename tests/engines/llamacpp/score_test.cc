// Tests how a sequence is scored on the slots of a llama-server, and how its weights are loaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/llamacpp/fake_server.h"
#include "tests/http/requests.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using retort::test::code_of, retort::test::expect_error, retort::test::soon;
using test::completion_of, test::FakeServer, test::forced_of, test::Json, test::json_reply;

TEST(LlamacppScore, AsksForEachPosition) {
  FakeServer server;
  const auto engine = server.engine();
  const Scored scored =
      engine->score({.token_ids = {1, 2, 3, 4, 5}, .positions = {0, 2, 3}, .top_k = 3}, soon())
          .get();
  EXPECT_EQ(scored.given, (std::vector<float>{-1, -1, -1}));
  ASSERT_EQ(scored.ids.sizes(), (at::IntArrayRef{3, 3}));
  EXPECT_EQ(scored.ids.scalar_type(), at::kInt);
  EXPECT_EQ(scored.ids[1][0].item().toInt(), 4);
  EXPECT_EQ(scored.ids[1][1].item().toInt(), 0);
  EXPECT_EQ(scored.log_probs[1][2].item().toFloat(), -2.0F);

  const std::vector<Json> bodies = server.bodies("/completion");
  ASSERT_EQ(bodies.size(), 3u);
  EXPECT_EQ(bodies[0]["prompt"], (Json::array({1})));
  EXPECT_EQ(bodies[2]["prompt"], (Json{1, 2, 3, 4}));
  for (const Json& body : bodies) {
    EXPECT_EQ(body["n_predict"], 1);
    EXPECT_EQ(body["n_probs"], 3);
    EXPECT_EQ(body["cache_prompt"], true);
    EXPECT_FALSE(body.contains("id_slot")) << "it breaks what another process draws there";
  }
  EXPECT_EQ(bodies[1]["logit_bias"][0][0], 4);
  const Scored none = engine->score({.token_ids = {1, 2}, .positions = {}}, soon()).get();
  EXPECT_TRUE(none.given.empty());
}

// The server says nothing of a token that ends within a character. Another one is forced, and the
// given token is looked for in larger and larger parts of the vocabulary.
TEST(LlamacppScore, LooksForPartsOfCharacters) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    Json answer = forced_of(body);
    if (answer["tokens"][0] == 90) answer.erase("completion_probabilities");
    return json_reply(answer);
  });
  const auto engine = server.engine();
  const Scored scored =
      engine->score({.token_ids = {1, 90}, .positions = {0}, .top_k = 2}, soon()).get();
  // Tokens 0 to 99 but 7, which is first, at -1.5, -2, ...: 90 is the 91st.
  EXPECT_EQ(scored.given, std::vector<float>{-1.0F - 0.5F * 90});
  EXPECT_EQ(scored.ids[0][0].item().toInt(), 7);
  const std::vector<Json> bodies = server.bodies("/completion");
  ASSERT_EQ(bodies.size(), 3u);
  EXPECT_EQ(bodies[1]["n_probs"], 64);
  EXPECT_EQ(bodies[2]["n_probs"], 100);
  EXPECT_EQ(bodies[2]["logit_bias"][0][0], 7);
}

TEST(LlamacppScore, WhatWasForcedIsDrawn) {
  FakeServer server;
  server.set("/completion", [](const Json& body) { return json_reply(completion_of(body, {5})); });
  const auto engine = server.engine();
  expect_error(ErrorCode::kMismatch, "drew token 5 where 2 was forced", [&] {
    engine->score({.token_ids = {1, 2}, .positions = {0}}, soon()).get();
  });
}

TEST(LlamacppScore, TopsThatCannotBe) {
  FakeServer server;
  const auto engine = server.engine();
  const auto fails = [&](const std::function<void(Json&)>& spoil, const std::string& part) {
    server.set("/completion", [spoil](const Json& body) {
      Json answer = forced_of(body);
      spoil(answer["completion_probabilities"][0]["top_logprobs"]);
      return json_reply(answer);
    });
    expect_error(ErrorCode::kCorrupt, part, [&] {
      engine->score({.token_ids = {1, 2}, .positions = {0}, .top_k = 3}, soon()).get();
    });
  };
  fails([](Json& top) { std::swap(top[1]["logprob"], top[2]["logprob"]); }, "does not fall");
  fails([](Json& top) { top[2]["id"] = top[1]["id"]; }, "twice");
  fails([](Json& top) { top.erase(2); }, "has 2 entries");
  fails([](Json& top) { top[2]["id"] = 100; }, "100");
  fails([](Json& top) { top[2]["logprob"] = nullptr; }, "NaN");
}

TEST(LlamacppScore, ProbabilitiesThatUnderflow) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    Json answer = forced_of(body);
    Json& chances = answer["completion_probabilities"][0];
    chances["logprob"] = chances["top_logprobs"][0]["logprob"] = -3.4028234663852886e38;
    return json_reply(answer);
  });
  const auto engine = server.engine();
  const Scored scored = engine->score({.token_ids = {1, 2}, .positions = {0}}, soon()).get();
  EXPECT_NEAR(scored.given.front(), -103.279, 1e-3);
}

// Two slots: never more than two sequences at a time.
TEST(LlamacppScore, AsManySequencesAsSlots) {
  FakeServer server;
  const auto engine = server.engine();
  std::vector<Future<Scored>> answers;
  for (int32_t i = 0; i < 6; ++i)
    answers.push_back(
        engine->score({.token_ids = {i, 1, 2, 3, 4}, .positions = {0, 1, 2, 3}}, soon()));
  for (Future<Scored>& answer : answers)
    answer.get();

  std::map<int, int> under_way;  // positions that were asked for of a sequence that is not done
  size_t most = 0;
  for (const Json& body : server.bodies("/completion")) {
    const int sequence = body["prompt"][0];
    ++under_way[sequence];
    most = std::max(most, under_way.size());
    if (under_way[sequence] == 4) under_way.erase(sequence);
  }
  EXPECT_EQ(most, 2u);
  EXPECT_TRUE(under_way.empty());
}

// The server hangs with both slots: who waits for one gives up at its own deadline.
TEST(LlamacppScore, WaitsEnd) {
  FakeServer server;
  retort::test::Count asked;
  retort::test::Count over;
  server.set("/completion", [&](const Json& body) {
    asked.raise();
    over.reaches(1);
    return json_reply(forced_of(body));
  });
  auto engine = server.engine();
  const ScoreRequest request{.token_ids = {1, 2}, .positions = {0}};
  std::vector<Future<Scored>> hanging;
  hanging.push_back(engine->score(request, soon()));
  hanging.push_back(engine->score(request, soon()));
  ASSERT_TRUE(asked.reaches(2));

  expect_error(ErrorCode::kTimeout, "all 2 slots", [&] {
    engine->score(request, Deadline::after(std::chrono::milliseconds(50))).get();
  });
  Future<Scored> unwanted = engine->score(request, soon());
  unwanted.cancel();
  EXPECT_EQ(code_of([&] { unwanted.get(); }), ErrorCode::kCancelled);
  hanging[0].cancel();
  EXPECT_EQ(code_of([&] { hanging[0].get(); }), ErrorCode::kCancelled);
  Future<Scored> waiting = engine->score(request, soon());
  engine.reset();
  EXPECT_EQ(code_of([&] { hanging[1].get(); }), ErrorCode::kClosed);
  EXPECT_EQ(code_of([&] { waiting.get(); }), ErrorCode::kClosed);
  over.raise();
}

// A router with the model "tiny", from the file models/tiny.gguf.
class FakeRouter {
 public:
  FakeRouter() {
    server.set("/v1/models", [this](const Json&) {
      Json status{{"value", status_now()}, {"args", {"--model", "models/tiny.gguf"}}};
      if (fails && steps.size() == 2) status.update({{"failed", true}, {"exit_code", 7}});
      Json entry{{"id", "tiny"}, {"status", status}};
      if (status["value"] == "loaded") entry["meta"] = {{"n_vocab", 100}};
      return json_reply({{"data", {entry}}});
    });
    for (const std::string step : {"unload", "load"})
      server.set("/models/" + step, [this, step](const Json& body) {
        steps.push_back(step + " " + body.at("model").get<std::string>());
        left = 2;
        return json_reply({{"success", true}});
      });
  }
  std::string status_now() {
    if (steps.empty()) return "loaded";
    const bool settled = left == 0;
    if (!settled) --left;
    if (steps.back().starts_with("unload")) return settled ? "unloaded" : "loaded";
    if (!settled) return "loading";
    return fails ? "unloaded" : "loaded";
  }

  // Requests come one at a time.
  std::vector<std::string> steps;
  int left = 0;
  bool fails = false;
  FakeServer server;
};

TEST(LlamacppReload, UnloadsAndLoads) {
  FakeRouter router;
  const auto engine = router.server.engine();
  engine->load_weights("/data/tiny.gguf", soon()).get();
  EXPECT_EQ(router.steps, (std::vector<std::string>{"unload tiny", "load tiny"}));
  EXPECT_EQ(engine->state(soon()).get().vocab_rows, 100);
}

TEST(LlamacppReload, SaysWhyNot) {
  FakeRouter router;
  router.fails = true;
  const auto engine = router.server.engine();
  expect_error(ErrorCode::kUnavailable, "ended with code 7",
               [&] { engine->load_weights("tiny.gguf", soon()).get(); });
  FakeRouter other;
  expect_error(ErrorCode::kMismatch, "tiny.gguf",
               [&] { other.server.engine()->load_weights("models/new.gguf", soon()).get(); });
  EXPECT_TRUE(other.steps.empty());
  expect_error(ErrorCode::kInvalidArgument, "GGUF",
               [&] { other.server.engine()->load_weights("models", soon()).get(); });

  FakeServer plain;
  expect_error(ErrorCode::kUnavailable, "--models-dir",
               [&] { plain.engine()->load_weights("tiny.gguf", soon()).get(); });
  ExternalOptions options{.engine = EngineKind::kLlamacpp, .url = {"http://192.0.2.1:1"}};
  expect_error(ErrorCode::kUnauthenticated, "allow_plain_admin", [&] {
    make_engine(options, options.url.front(), "")->load_weights("a.gguf", soon()).get();
  });
}

}  // namespace
}  // namespace retort::engines
