// Answers of a llama-server that cannot be, and what becomes of requests that fail.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/llamacpp/fake_server.h"
#include "tests/http/requests.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using retort::test::code_of, retort::test::error_of, retort::test::expect_error,
    retort::test::reply, retort::test::soon;
using test::completion_of, test::draw_request, test::error_reply, test::FakeServer, test::forced_of,
    test::Json, test::json_reply;

struct BadAnswer {
  const char* name;
  std::function<void(Json&)> spoil;
  ErrorCode code;
  const char* part;
};
void PrintTo(const BadAnswer& bad, std::ostream* out) { *out << bad.name; }

Json& chances(Json& answer) { return answer["completion_probabilities"]; }

class BadDraw : public ::testing::TestWithParam<BadAnswer> {};

TEST_P(BadDraw, IsRefusedByItsField) {
  FakeServer server;
  server.set("/completion", [](const Json& body) {
    Json answer = completion_of(body, {3, 4});
    GetParam().spoil(answer);
    return json_reply(answer);
  });
  const auto engine = server.engine();
  const Error error = error_of([&] { engine->draw(draw_request(2), soon()).get(); });
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_NE(error.message().find(GetParam().part), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("url=http://127.0.0.1"), std::string::npos);
  EXPECT_EQ(server.count("/completion"), 1u);
}

constexpr ErrorCode kCorrupt = ErrorCode::kCorrupt;
constexpr ErrorCode kMismatch = ErrorCode::kMismatch;

INSTANTIATE_TEST_SUITE_P(
    LlamacppAnswers, BadDraw,
    ::testing::Values(
        BadAnswer{"no tokens", [](Json& a) { a.erase("tokens"); }, kCorrupt, "tokens is missing"},
        BadAnswer{"empty", [](Json& a) { a["tokens"] = Json::array(); }, kCorrupt, "0 ids"},
        BadAnswer{"too many",
                  [](Json& a) {
                    a["tokens"] = {3, 4, 5};
                  },
                  kCorrupt, "3 ids"},
        BadAnswer{"id above", [](Json& a) { a["tokens"][1] = 100; }, kCorrupt, "tokens is 100"},
        BadAnswer{"id below", [](Json& a) { a["tokens"][1] = -1; }, kCorrupt, "tokens is -1"},
        BadAnswer{"id huge", [](Json& a) { a["tokens"][1] = UINT64_MAX; }, kCorrupt, "tokens is"},
        BadAnswer{"id text", [](Json& a) { a["tokens"][1] = "4"; }, kCorrupt, "tokens is"},
        BadAnswer{"NaN", [](Json& a) { chances(a)[1]["logprob"] = nullptr; }, kCorrupt, "NaN"},
        BadAnswer{"positive", [](Json& a) { chances(a)[0]["logprob"] = 0.5; }, kCorrupt, "above 0"},
        BadAnswer{"text", [](Json& a) { chances(a)[0]["logprob"] = "-1"; }, kCorrupt, "logprob"},
        BadAnswer{"other id", [](Json& a) { chances(a)[1]["id"] = 5; }, kCorrupt, "entry 1"},
        BadAnswer{"more chances", [](Json& a) { chances(a).push_back(chances(a)[0]); }, kCorrupt,
                  "3 entries for 2"},
        BadAnswer{"no top", [](Json& a) { chances(a)[0]["top_logprobs"] = Json::array(); },
                  kCorrupt, "speculative"},
        BadAnswer{"disagrees", [](Json& a) { chances(a)[0]["top_logprobs"][0]["logprob"] = -0.5; },
                  kCorrupt, "disagrees"},
        BadAnswer{"above the top",
                  [](Json& a) {
                    chances(a)[0]["top_logprobs"][0] = {{"id", 9}, {"logprob", -2.0}};
                  },
                  kCorrupt, "most probable"},
        BadAnswer{"after sampling", [](Json& a) { chances(a)[0]["prob"] = 0.5; }, kMismatch,
                  "post_sampling_probs"},
        BadAnswer{"list", [](Json& a) { a = Json::array({a}); }, kCorrupt, "no object"},
        BadAnswer{"stop", [](Json& a) { a["stop_type"] = "none"; }, kCorrupt, "stop_type"},
        BadAnswer{"no truncated", [](Json& a) { a.erase("truncated"); }, kCorrupt, "truncated"},
        BadAnswer{"other word",
                  [](Json& a) {
                    a["stop_type"] = "word";
                    a["stopping_word"] = "User:";
                  },
                  kMismatch, "User:"},
        BadAnswer{"other temperature",
                  [](Json& a) { a["generation_settings"]["temperature"] = 0.8; }, kMismatch,
                  "temperature 0.8"},
        BadAnswer{"other samplers",
                  [](Json& a) { a["generation_settings"]["samplers"].push_back("xtc"); }, kMismatch,
                  "samplers"},
        BadAnswer{"no seed", [](Json& a) { a["generation_settings"].erase("seed"); }, kCorrupt,
                  "seed"}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name)
        if (c == ' ') c = '_';
      return name;
    });

TEST(LlamacppAnswers, ThatAreNoJson) {
  FakeServer server;
  const auto engine = server.engine();
  for (const std::string body : {"<html>hello</html>", R"({"tokens": [3, 4], "stop_ty)", ""}) {
    server.set("/completion", [body](const Json&) { return reply(200, body); });
    expect_error(ErrorCode::kCorrupt, "no JSON",
                 [&] { engine->draw(draw_request(2), soon()).get(); });
  }
  server.set("/completion", [](const Json&) { return reply(200, std::string(5000, '[')); });
  expect_error(ErrorCode::kCorrupt, "nested too deep",
               [&] { engine->draw(draw_request(2), soon()).get(); });
}

TEST(LlamacppAnswers, ErrorsOfTheServer) {
  FakeServer server;
  const auto engine = server.engine("sk-secret");
  const auto fails = [&](int status, ErrorCode code, const std::string& part) {
    server.set("/completion",
               [status](const Json&) { return error_reply(status, "no sk-secret, no tokens"); });
    const Error error = error_of([&] { engine->draw(draw_request(2), soon()).get(); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("sk-secret"), std::string::npos) << error.what();
  };
  fails(400, ErrorCode::kInvalidArgument, "no tokens");
  fails(401, ErrorCode::kUnauthenticated, "api_key");
  fails(404, ErrorCode::kUnavailable, "door");
  fails(500, ErrorCode::kUnavailable, "log");
}

// A draw that broke may still run; a score is asked for again.
TEST(LlamacppAnswers, BrokenConnections) {
  FakeServer server;
  const auto engine = server.engine();
  server.set("/completion", [](const Json&) { return ""; });
  EXPECT_EQ(code_of([&] { engine->draw(draw_request(2), soon()).get(); }), ErrorCode::kUnavailable);
  EXPECT_EQ(server.count("/completion"), 1u);

  std::atomic<int> failures{2};
  server.set("/completion", [&failures](const Json& body) {
    return failures-- > 0 ? "" : json_reply(forced_of(body));
  });
  const Scored scored = engine->score({.token_ids = {1, 2}, .positions = {0}}, soon()).get();
  EXPECT_EQ(scored.given, std::vector<float>{-1});
}

TEST(LlamacppAnswers, WhileItLoads) {
  FakeServer server;
  server.set("/health", [](const Json&) { return error_reply(503, "Loading model"); });
  const auto engine = server.engine();
  expect_error(ErrorCode::kUnavailable, "Loading model", [&] { engine->state(soon()).get(); });
}

// Whoever lists models serves them; who has neither door is something else, for which nobody waits.
TEST(LlamacppAnswers, WithoutHealth) {
  FakeServer server;
  const auto no_door = [](const Json&) { return error_reply(404, "File Not Found"); };
  server.set("/health", no_door);
  const auto engine = server.engine();
  EXPECT_EQ(engine->state(soon()).get().served_model, "tiny");
  server.set("/v1/models", no_door);
  expect_error(ErrorCode::kMismatch, "neither /health nor /v1/models",
               [&] { engine->state(soon()).get(); });
  server.set("/v1/models", [](const Json&) { return error_reply(503, "Loading model"); });
  expect_error(ErrorCode::kUnavailable, "Loading model", [&] { engine->state(soon()).get(); });
}

TEST(LlamacppAnswers, NamesOfModels) {
  FakeServer server;
  ExternalOptions options = server.options();
  const auto state = [&](const std::string& name) {
    options.served_model = name;
    return make_engine(options, options.url.front(), "")->state(soon()).get();
  };
  EXPECT_EQ(state("").served_model, "tiny");
  EXPECT_EQ(state("small").served_model, "tiny");
  EXPECT_EQ(state("tiny").context_tokens, 64);
  EXPECT_EQ(state("tiny").version, "b1-fake");
  expect_error(ErrorCode::kMismatch, "does not list large but tiny", [&] { state("large"); });

  server.set("/v1/models", [](const Json&) {
    return json_reply({{"data", {{{"id", "a"}}, {{"id", "b"}}}}});
  });
  expect_error(ErrorCode::kMismatch, "a, b", [&] { state(""); });
  expect_error(ErrorCode::kUnavailable, "not loaded", [&] { state("a"); });
}

}  // namespace
}  // namespace retort::engines
