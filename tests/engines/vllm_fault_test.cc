// Answers that vLLM, or what stands before it, should not give: each ends in an error that says
// what is wrong and where.
#include <gtest/gtest.h>

#include <atomic>

#include "engines/make_engine.h"
#include "tests/engines/vllm_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using test::soon;

using VllmFault = test::RecordedVllm;

TEST_F(VllmFault, RowsThatCannotBe) {
  // Row 2 is of position 1, whose token is 23; rows 1 and 3 are not wanted, 5 and 8 are.
  const struct {
    std::string from, to;
    ErrorCode code;
    std::string part;
  } cases[] = {
      {"\"23\":{\"logprob\":-6.28", "\"23\":{\"logprob\":6.28", ErrorCode::kCorrupt, "at most 0"},
      {"-6.280439376831055", "-9999.0", ErrorCode::kCorrupt, "NaN or minus infinity"},
      {"-6.280439376831055", "NaN", ErrorCode::kCorrupt, "no JSON at byte"},
      {"-6.280439376831055", "null", ErrorCode::kCorrupt, "logprob"},
      {"-6.280439376831055", "\"-6.2\"", ErrorCode::kCorrupt, "logprob"},
      {"\"23\":{", "\"24\":{", ErrorCode::kMismatch, "nothing is said of token 23"},
      {"\"99\":{\"logprob\":-3.0649008750915527,\"rank\":1,\"decoded_token\":\"\"},", "",
       ErrorCode::kCorrupt, "rank"},
      {"{\"23\":{\"logprob\":-6.280439376831055,\"rank\":119,\"decoded_token\":\"5\"},", "{",
       ErrorCode::kMismatch, "nothing is said of token 23"},
      {"\"rank\":119", "\"rank\":0", ErrorCode::kCorrupt, "ranks are 1, 2"},
      {"\"rank\":119,", "", ErrorCode::kMismatch, "no rank"},
      {"-3.0649008750915527,\"rank\":1", "-3.0649008750915527,\"rank\":2", ErrorCode::kCorrupt,
       "has rank 2"},
      {"-3.0649008750915527", "-3.1", ErrorCode::kCorrupt, "do not follow"},
      {"-6.280439376831055", "-1.5", ErrorCode::kCorrupt, "not among them"},
      {"\"99\":{", "\"268\":{", ErrorCode::kCorrupt, "twice"},
      {"\"99\":{", "\"x\":{", ErrorCode::kCorrupt, "no token id"},
      {"[null,{\"160\"", "[{\"160\"", ErrorCode::kMismatch, "nothing stands before"},
      {"[null,", "[null,null,", ErrorCode::kMismatch, "is null"},
      {"{\"23\":{", "{\"5\":{\"logprob\":-1,\"rank\":9},\"23\":{", ErrorCode::kMismatch,
       "more than the 3"},
      {"\"prompt_token_ids\":[7,160", "\"prompt_token_ids\":[7,161", ErrorCode::kMismatch,
       "another prompt"},
      {"\"prompt_token_ids\":[7,160,", "\"prompt_token_ids\":[", ErrorCode::kMismatch,
       "prompt_token_ids"},
      {"\"prompt_logprobs\":[", "\"other\":[", ErrorCode::kMismatch, "prompt_logprobs: is missing"},
      {"\"choices\":[", "\"none\":[", ErrorCode::kMismatch, "0 completions"},
      {"\"choices\":[", "\"choices\":[{},", ErrorCode::kMismatch, "more than 1"},
      {"\"index\":0", "\"index\":1", ErrorCode::kMismatch, "index"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.from + " -> " + c.to);
    expect_score_error(c.code, c.part, json_reply(changed("score-top", c.from, c.to)));
  }
}

// Row 2 in another order, with its token among the three and as probable as another, whose rank it
// may then have.
TEST_F(VllmFault, RowsInAnyOrder) {
  const std::string body = exchange("score-top").answer.at("body").get<std::string>();
  const size_t begin = body.find("{\"23\":{\"logprob\":-6.28");
  const size_t end = body.find("}}", begin) + 2;
  ASSERT_NE(begin, std::string::npos);
  for (const std::string rank : {"2", "3"}) {
    const std::string row =
        "{\"153\":{\"rank\":3,\"logprob\":-3.5,\"decoded_token\":null},\"99\":{\"logprob\":-3.25,"
        "\"rank\":1},\"23\":{\"logprob\":-3.5,\"rank\":" +
        rank + ",\"decoded_token\":\"\\u00e9\"}}";
    server().answer("score-top", json_reply(body.substr(0, begin) + row + body.substr(end)));
    const Scored scored = engine().score(score({1, 4, 7}, 3), soon()).get();
    EXPECT_EQ(scored.given[0], -3.5f);
    const auto* ids = scored.ids.data_ptr<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{99, 23, 153}));
    const auto* log_probs = scored.log_probs.data_ptr<float>();
    EXPECT_EQ(std::vector<float>(log_probs, log_probs + 3),
              (std::vector<float>{-3.25f, -3.5f, -3.5f}));
  }
}

// Nobody asked for position 0.
TEST_F(VllmFault, RowsThatNobodyWantsMayBeAnything) {
  server().answer("score-top", json_reply(changed("score-top", "-7.390861511230469", "-9999.0")));
  EXPECT_EQ(engine().score(score({1, 4, 7}, 3), soon()).get().given.size(), 3u);
}

TEST_F(VllmFault, RowsThatAreMissing) {
  std::string body = exchange("score-top").answer.at("body").get<std::string>();
  const size_t last = body.find(",{\"310\":{\"logprob\":-6.5");
  ASSERT_NE(last, std::string::npos);
  body.erase(last, body.find("}}]", last) + 2 - last);
  expect_score_error(ErrorCode::kMismatch, "8 entries for 9 tokens", json_reply(body));
}

TEST_F(VllmFault, DrawsThatWereNotAskedFor) {
  const struct {
    std::string from, to;
    ErrorCode code;
    std::string part;
  } cases[] = {
      {"\"token_ids\":[331,318", "\"token_ids\":[318", ErrorCode::kMismatch, "12 numbers for 11"},
      {"\"token_ids\":[331", "\"token_ids\":[330", ErrorCode::kMismatch, "other ids"},
      {"\"token_ids\":[331", "\"token_ids\":[0.5", ErrorCode::kCorrupt, "no token id"},
      {"\"token_ids\":[331", "\"token_ids\":[1,331", ErrorCode::kMismatch, "more than the 12"},
      {"\"token_ids\":[331", "\"ids\":[331", ErrorCode::kMismatch, "token_ids: is missing"},
      {"\"tokens\":[\"token_id:331\"", "\"tokens\":[\"ick\"", ErrorCode::kCorrupt,
       "return_tokens_as_token_ids"},
      {"\"token_logprobs\":[-7.257855415344238", "\"token_logprobs\":[0.25", ErrorCode::kCorrupt,
       "token_logprobs[0]"},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":\"stop\"", ErrorCode::kMismatch,
       "which no end token"},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":\"repetition\"", ErrorCode::kMismatch,
       "repetition"},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":null", ErrorCode::kMismatch, "expected"},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":\"abort\"", ErrorCode::kUnavailable,
       "draw again"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.from + " -> " + c.to);
    expect_draw_error(c.code, c.part, json_reply(changed("draw-length", c.from, c.to)));
  }

  expect_no_draw_of_others();
  const std::string cut = changed("draw-end", "\"stop\"", "\"length\"");
  expect_draw_error(ErrorCode::kMismatch, "after 6 of 12", json_reply(cut));
}

TEST_F(VllmFault, WhatIsNoAnswerOfVllm) {
  expect_no_score_of_strangers();
  expect_score_error(ErrorCode::kInvalidArgument, "does not take the request",
                     test::reply(400, "{\"error\": {\"message\": \"no such thing\"}}"));
  expect_score_error(ErrorCode::kInvalidArgument, "--max-model-len",
                     exchange("score-too-long").reply());
  expect_score_error(ErrorCode::kUnavailable, "EngineCore",
                     test::reply(500, "{\"error\": {\"message\": \"EngineCore is dead\"}}"));
  expect_score_error(ErrorCode::kUnauthenticated, "401", test::reply(401, "{}"));
}

TEST_F(VllmFault, ModelsThatAreNotThere) {
  const auto list = [](const std::string& data) {
    return json_reply("{\"object\": \"list\", \"data\": [" + data + "]}");
  };
  server().answer("models", list("{\"id\": \"a\"}, {\"id\": \"b\"}"));
  expect_named(ErrorCode::kInvalidArgument, "\"a\", \"b\"", [&] { engine().state(soon()).get(); });
  const auto named = make({.served_model = "m"});
  test::expect_error(ErrorCode::kMismatch, "\"a\", \"b\"", [&] { named->state(soon()).get(); });
  for (const std::string data :
       {"", "{}", "{\"id\": 3}", "{\"id\": \"m\", \"max_model_len\": -1}"}) {
    server().answer("models", list(data));
    expect_named(ErrorCode::kCorrupt, "/v1/models", [&] { engine().state(soon()).get(); });
  }

  // A list without a length says nothing of the context.
  server().answer("models", list("{\"id\": \"m\", \"max_model_len\": null}, {\"id\": \"n\"}"));
  EXPECT_EQ(named->state(soon()).get().context_tokens, 0);
}

TEST_F(VllmFault, ServersThatAreNotThereYet) {
  server().answer("health", test::reply(503, ""));
  expect_named(ErrorCode::kUnavailable, "503", [&] { engine().state(soon()).get(); });
  server().answer("health", test::reply(200, ""));
  server().answer("version", test::reply(404, "{\"detail\": \"Not Found\"}"));
  EXPECT_EQ(engine().state(soon()).get().version, "");

  // A proxy that passes on /v1 alone is fine. Without /v1 no waiting mends it.
  server().answer("health", test::reply(404, ""));
  EXPECT_EQ(engine().state(soon()).get().version, "");
  server().answer("models", test::reply(404, "{}"));
  expect_named(ErrorCode::kMismatch, "check the path", [&] { engine().state(soon()).get(); });
}

TEST_F(VllmFault, LimitsThatNobodyNames) {
  server().answer("limit-allowed", test::reply(400, "{\"error\": {\"message\": \"no\"}}"));
  server().answer("limit-rows", exchange("tiny").reply());
  EXPECT_EQ(engine().state(soon()).get().vocab_rows, 0);
  EXPECT_EQ(engine().abilities().max_top_k, 20) << "vLLM's default";

  // All ids are allowed: the second question is answered.
  server().answer("limit-allowed", test::reply(400,
                                               "greater than max allowed: 416 Requested "
                                               "prompt logprobs of 2147483647"));
  EXPECT_EQ(engine().state(soon()).get().vocab_rows, 416);
  EXPECT_EQ(engine().abilities().max_top_k, 416);
}

TEST_F(VllmFault, WeightsThatWereNotLoaded) {
  const auto load = [&] { engine().load_weights(weights(), soon()).get(); };
  server().answer("reload", test::reply(404, "{\"detail\": \"Not Found\"}"));
  expect_named(ErrorCode::kInvalidArgument, "VLLM_SERVER_DEV_MODE=1", load);
  server().answer("reload", test::reply(500, "{\"error\": {\"message\": \"Worker failed\"}}"));
  expect_named(ErrorCode::kUnavailable, "Worker failed", load);
  for (const std::string body : {"{\"results\":[]}", "{\"results\":[\"no\"]}", "[]", "{}"}) {
    server().answer("reload", json_reply(body));
    expect_named(ErrorCode::kMismatch, "a null of each worker", load);
  }

  server().answer("reload", exchange("reload").reply());
  server().answer("reset", json_reply("{\"success\":false}"));
  expect_named(ErrorCode::kUnavailable, "kept what it computed", load);
  server().answer("reset", test::reply(200, ""));
  load();

  // The engine died of the folder, and says so at the next request.
  server().answer("tiny", test::reply(500, "{\"error\": {\"message\": \"EngineCore\"}}"));
  expect_named(ErrorCode::kUnavailable, "EngineCore", load);
}

TEST_F(VllmFault, BusyServersAreAskedAgain) {
  engine().state(soon()).get();
  const test::Exchange given = exchange("score-given");
  std::atomic<int> num_asked = 0;
  const test::ScriptedServer busy(test::answer_all([&](const test::Received& received) {
    if (received.target == "/v1/models") return exchange("models").reply();
    if (received.body.find("\"prompt\":[0]") != std::string::npos)
      return exchange("limit-rows").reply();
    return ++num_asked <= 2 ? test::reply(429, "", "Retry-After: 0\r\n") : given.reply();
  }));
  const auto engine = make_engine({}, busy.url(), "");
  EXPECT_EQ(engine->score(score({7}, 0), soon()).get().given.size(), 1u);
  EXPECT_EQ(num_asked, 3);
}

TEST_F(VllmFault, AnswersThatBreakOff) {
  const test::ScriptedServer server([&](test::Peer& peer) {
    while (const auto received = peer.read()) {
      if (received->target == "/v1/models") {
        peer.write(exchange("models").reply());
      } else if (received->body.find("\"prompt\":[0]") != std::string::npos) {
        peer.write(exchange("limit-rows").reply());
      } else {
        const std::string whole = exchange("score-given").reply();
        peer.write(whole.substr(0, whole.size() - 500));
        return;
      }
    }
  });
  const auto engine = make_engine({}, server.url(), "");
  test::expect_error(ErrorCode::kCorrupt, "ends too early",
                     [&] { engine->score(score({7}, 0), soon()).get(); });
}

// A score is asked once more when its connection breaks, a draw is not.
TEST_F(VllmFault, BrokenConnections) {
  std::atomic<int> num_asked = 0;
  const test::ScriptedServer breaking([&](test::Peer& peer) {
    while (const auto received = peer.read()) {
      const bool limit = received->body.find("\"prompt\":[0]") != std::string::npos;
      if (received->target == "/v1/models") peer.write(exchange("models").reply());
      if (limit) peer.write(exchange("limit-rows").reply());
      if (limit || received->target == "/v1/models") continue;
      ++num_asked;
      return;
    }
  });
  const auto engine = make_engine({}, breaking.url(), "");
  test::expect_error(ErrorCode::kUnavailable, "closed by the server",
                     [&] { engine->draw(draw(), soon()).get(); });
  EXPECT_EQ(num_asked.exchange(0), 1);
  test::expect_error(ErrorCode::kUnavailable, "closed by the server",
                     [&] { engine->score(score({7}, 0), soon()).get(); });
  EXPECT_GE(num_asked, 2) << "what only asks is asked again";
}

TEST_F(VllmFault, EndsWithTheEngine) {
  const test::ScriptedServer silent([](test::Peer& peer) { peer.wait_closed(); });
  auto engine = make_engine({}, silent.url(), "");
  Future<Drawn> drawn = engine->draw(draw(), soon());
  Future<EngineState> state = engine->state(soon());
  engine.reset();
  test::expect_error(ErrorCode::kClosed, "closed", [&] { drawn.get(); });
  test::expect_error(ErrorCode::kClosed, "closed", [&] { state.get(); });
}

}  // namespace
}  // namespace retort::engines
