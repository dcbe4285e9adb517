// The adapter of OpenAI's chat completions: what it asks, and what it makes of answers. The plain
// answers are those of llama.cpp's server, as recorded.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/http/requests.h"
#include "tests/http/scripted_server.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using nlohmann::json;
using test::Received, test::reply, test::soon;

constexpr const char* kModels =
    R"({"models":[{"name":"tiny","model":"tiny"}],"object":"list","data":[{"id":"tiny",)"
    R"("aliases":["tiny"],"object":"model","created":1795416975,"owned_by":"llamacpp"}]})";
constexpr const char* kAnswer =
    R"({"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant",)"
    R"("content":"Score: 7"}}],"created":1795416975,"model":"tiny","system_fingerprint":)"
    R"("b0-unknown","object":"chat.completion","usage":{"completion_tokens":4,)"
    R"("prompt_tokens":24,"total_tokens":28},"id":"chatcmpl-xJnV"})";

std::string json_reply(int status, const std::string& body) {
  return reply(status, body, "Content-Type: application/json\r\n");
}

// Answers `models` and what `answer` makes of a question.
class OpenaiTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine(const std::string& path = "",
                                 const std::string& model = "") const {
    return make_engine({.engine = EngineKind::kOpenai,
                        .url = {server_.url(path)},
                        .served_model = model,
                        .timeout = std::chrono::seconds(30)},
                       server_.url(path), "sesame");
  }
  static WriteRequest question() { return {.text = "Rate \"this\".", .max_new_tokens = 4}; }
  // Gives the answer `text` to a question, and returns what becomes of it.
  Written written(const std::string& text, int status = 200) {
    answer = json_reply(status, text);
    return engine()->write(question(), soon()).get(soon());
  }
  // The recorded answer with a change.
  template <class Change>
  static std::string changed(Change change) {
    json value = json::parse(kAnswer);
    change(value);
    return value.dump();
  }

  std::string models = json_reply(200, kModels);
  std::string answer = json_reply(200, kAnswer);
  std::vector<Received> questions;

 private:
  std::string said(const Received& request) {
    if (request.target == "/v1/models") return models;
    if (request.target != "/v1/chat/completions") return reply(404, "no such door");
    questions.push_back(request);
    return answer;
  }
  test::ScriptedServer server_{
      test::answer_all([this](const Received& request) { return said(request); })};
};

TEST_F(OpenaiTest, AsksOneUserMessageAtTemperatureZero) {
  const Written written = engine()->write(question(), soon()).get(soon());
  EXPECT_EQ(written.text, "Score: 7");
  EXPECT_TRUE(written.cut);
  EXPECT_EQ(written.tokens, 4);
  EXPECT_EQ(written.model, "tiny");
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(json::parse(questions[0].body),
            json::parse(R"({"model": "tiny", "temperature": 0, "max_tokens": 4,
                "messages": [{"role": "user", "content": "Rate \"this\"."}]})"));
  EXPECT_EQ(questions[0].headers.at("authorization"), "Bearer sesame");
}

TEST_F(OpenaiTest, AddressWithItsVersionIsTheSame) {
  for (const std::string path : {"", "/", "/v1", "/v1/"})
    EXPECT_EQ(engine(path)->write(question(), soon()).get(soon()).text, "Score: 7") << path;
}

TEST_F(OpenaiTest, SaysWhichModelItServes) {
  EXPECT_EQ(engine()->state(soon()).get(soon()).served_model, "tiny");
  test::expect_error(ErrorCode::kMismatch, "has no model \"large\"",
                     [&] { engine("", "large")->state(soon()).get(soon()); });

  // A gateway lists none.
  models = reply(404, "nothing here");
  EXPECT_EQ(engine("", "large")->state(soon()).get(soon()).served_model, "large");
  test::expect_refused("name the one to ask", [&] { engine()->state(soon()).get(soon()); });
}

TEST_F(OpenaiTest, WhatItThoughtIsNotWhatItSaid) {
  const Written silent = written(changed([](json& a) {
    a["choices"][0]["message"] = {{"role", "assistant"}, {"content", nullptr}, {"reasoning", "7"}};
  }));
  EXPECT_EQ(silent.text, "");
  EXPECT_TRUE(silent.cut);
  EXPECT_FALSE(written(changed([](json& a) { a["choices"][0]["finish_reason"] = "stop"; })).cut);
  EXPECT_TRUE(
      written(changed([](json& a) { a["choices"][0]["finish_reason"] = "content_filter"; })).cut);
  EXPECT_EQ(written(changed([](json& a) { a.erase("usage"); })).tokens, 0);
}

TEST_F(OpenaiTest, AnswerThatIsNoneIsCorrupt) {
  const auto corrupt = [&](const std::string& part, const std::string& text) {
    test::expect_error(ErrorCode::kCorrupt, part, [&] { written(text); });
  };
  corrupt("no JSON object", "<html>");
  corrupt("no JSON object", std::string(kAnswer).substr(0, 90));
  corrupt("no JSON object", std::string(200, '['));
  corrupt("one choice", changed([](json& a) { a.erase("choices"); }));
  corrupt("one choice", changed([](json& a) { a["choices"].push_back(a["choices"][0]); }));
  corrupt("one choice", changed([](json& a) { a["choices"] = json::array({1}); }));
  corrupt("no message", changed([](json& a) { a["choices"][0].erase("message"); }));
  corrupt("is no text", changed([](json& a) { a["choices"][0]["message"]["content"] = 7; }));
  corrupt("no finish_reason", changed([](json& a) { a["choices"][0].erase("finish_reason"); }));
}

TEST_F(OpenaiTest, AnotherModelAtOnceIsRefused) {
  const auto asked = engine();
  EXPECT_NO_THROW(asked->write(question(), soon()).get(soon()));
  answer = json_reply(200, changed([](json& a) { a["model"] = "large"; }));
  test::expect_refused("another model under the same address",
                       [&] { asked->write(question(), soon()).get(soon()); });
}

// A question that is too long, or that a filter stops, is one completion's matter.
TEST_F(OpenaiTest, QuestionThatIsRefusedIsNoError) {
  for (const int status : {400, 413, 422}) {
    const Written refused = written(R"({"error": {"message": "exceeds the context"}})", status);
    EXPECT_NE(refused.refused.find("exceeds the context"), std::string::npos) << refused.refused;
    EXPECT_TRUE(refused.cut);
    EXPECT_EQ(refused.text, "");
  }
  EXPECT_EQ(written(kAnswer).refused, "");
}

TEST_F(OpenaiTest, ErrorsSayWhatToDo) {
  const auto error = [&](int status, const std::string& body) {
    return test::error_of([&] { written(body, status); });
  };
  EXPECT_NE(error(404, "{}").message().find("url is the address without"), std::string::npos);
  EXPECT_EQ(error(401, "{}").code(), ErrorCode::kUnauthenticated);

  // Gateways say it with a status of 200.
  test::expect_error(ErrorCode::kCorrupt, "no capacity left", [&] {
    written(R"({"error": {"code": 529, "message": "no capacity left"}})");
  });
}

TEST_F(OpenaiTest, ServerThatIsBusyOrFailsForAMomentIsWaitedFor) {
  std::atomic<int> asked{0};
  test::ScriptedServer busy(test::answer_all([&](const Received& request) {
    if (request.target == "/v1/models") return models;
    const int statuses[] = {429, 500, 502, 408};
    const int turn = asked++;
    return turn < 4 ? reply(statuses[turn], "busy", "Retry-After: 0\r\n")
                    : json_reply(200, kAnswer);
  }));
  const auto patient =
      make_engine({.engine = EngineKind::kOpenai, .url = {busy.url()}}, busy.url(), "");
  EXPECT_EQ(patient->write(question(), soon()).get(soon()).text, "Score: 7");
  EXPECT_EQ(asked, 5);
}

TEST_F(OpenaiTest, ItDoesNothingElse) {
  EXPECT_TRUE(engine()->abilities().writes);
  EXPECT_FALSE(engine()->abilities().scores || engine()->abilities().draws);
  test::expect_refused("cannot score", [&] {
    engine()->score({.token_ids = {1, 2}, .positions = {0}}, soon()).get(soon());
  });
}

TEST(OpenaiOptions, WhatHasNoEffectIsRefused) {
  ExternalOptions options{.engine = EngineKind::kOpenai, .url = {"http://host:8000"}};
  EXPECT_NO_THROW(options.validate());
  options.tokenizer = "folder";
  test::expect_refused("tokenizer: has no effect", [&] { options.validate(); });
  options.tokenizer.clear();
  options.tolerance = 1e-3;
  test::expect_refused("tolerance: has no effect", [&] { options.validate(); });
}

}  // namespace
}  // namespace retort::engines
