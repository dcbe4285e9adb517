// The adapter beside a server that says what Triton said, or what no server should.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "engines/wire/plain_admin.h"
#include "tests/engines/kserve_reply.h"
#include "tests/http/requests.h"

namespace retort::engines {
namespace {

using kserve::reply_with;
using test::Received, test::expect_error, test::reply, test::ScriptedServer, test::soon;
namespace recorded = kserve::recorded;
using Json = nlohmann::ordered_json;

// reply() has a type of its own.
// Keeps what was asked so far, "POST /v2/models/small/infer".
class Journal {
 public:
  void add(const Received& request) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(request.method + " " + request.target);
    bodies_.push_back(request.body);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::vector<std::string> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  std::vector<std::string> bodies_;
};

// Everything as recorded, but for what `instead` answers: by the path, or nothing.
using Instead = std::map<std::string, std::string>;
std::string answer_of(const Received& request, const Instead& instead) {
  const auto other = instead.find(request.target);
  if (other != instead.end()) return other->second;
  const std::string& path = request.target;
  if (path == "/v2") return reply_with(recorded::kServer);
  if (path == "/v2/repository/index") return reply_with(recorded::kIndex);
  if (path == "/v2/models/small") return reply_with(recorded::kModel);
  if (path == "/v2/models/small/config") return reply_with(recorded::kConfiguration);
  if (path.ends_with("/ready") || path.ends_with("load")) return reply(200, "");
  if (path != "/v2/models/small/infer") return reply_with(recorded::kUnknown);
  if (request.body.find("hidden_states") != std::string::npos)
    return reply_with(recorded::kHiddenStates);
  if (request.body.find("scores") != std::string::npos) return reply_with(recorded::kRewards);
  return reply_with(recorded::kScores);
}

class Kserve : public ::testing::Test {
 protected:
  // Serves; every test calls it once.
  void serve(Instead instead = {}) {
    server_ = std::make_unique<ScriptedServer>(
        test::answer_all([this, instead = std::move(instead)](const Received& request) {
          journal_.add(request);
          return answer_of(request, instead);
        }));
  }

  ExternalOptions options() const {
    ExternalOptions options{.engine = EngineKind::kKserve, .served_model = "small"};
    options.weights.via = WeightRoute::kRepository;
    return options;
  }
  std::unique_ptr<Engine> engine(const ExternalOptions& options) const {
    return make_engine(options, server_->url(), "");
  }
  std::unique_ptr<Engine> ready() const {
    auto engine = this->engine(options());
    engine->state(soon()).get();
    return engine;
  }

  // score() of a server that answers it with `answer` fails like this, with the address.
  void expect_failure(ErrorCode code, const std::string& part, const std::string& answer,
                      std::source_location caller = std::source_location::current()) {
    serve({{"/v2/models/small/infer", answer}});
    const auto engine = ready();
    const Error error = test::error_of([&] { engine->score(question(), soon()).get(); }, caller);
    const ::testing::ScopedTrace trace(caller.file_name(), static_cast<int>(caller.line()), part);
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_NE(test::context_of(error, "url").find("127.0.0.1"), std::string::npos) << error.what();
  }
  static ScoreRequest question() {
    return {.token_ids = {5, 6, 7, 8, 9}, .positions = {0, 2, 3}, .top_k = 2};
  }

  Journal journal_;
  std::unique_ptr<ScriptedServer> server_;
};

TEST_F(Kserve, AsksWhatThereIs) {
  serve();
  const auto engine = this->engine(options());
  const EngineState state = engine->state(soon()).get();
  EXPECT_EQ(state.version, "triton 2.51.0");
  EXPECT_EQ(state.vocab_rows, 400);
  EXPECT_EQ(journal_.lines(),
            (std::vector<std::string>{"GET /v2/health/ready", "GET /v2",
                                      "POST /v2/repository/index", "GET /v2/models/small/ready",
                                      "GET /v2/models/small", "GET /v2/models/small/config"}));
}

TEST_F(Kserve, ScoresAsTheRecordedModel) {
  serve();
  const auto engine = ready();
  const Scored scored = engine->score(question(), soon()).get();
  ASSERT_EQ(scored.given.size(), 3u);
  EXPECT_NEAR(scored.given[0], -8.573266, 1e-5);
  EXPECT_EQ(scored.ids.sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_EQ(scored.ids.const_data_ptr<int32_t>()[4], 249);
  EXPECT_NEAR(scored.log_probs.const_data_ptr<float>()[5], -3.599436, 1e-5);

  // The numbers went as they are, little-endian.
  const std::string body = journal_.bodies().back();
  const std::vector<int32_t> sent{5, 6, 7, 8, 9, 0, 2, 3, 2, 5};
  ASSERT_GT(body.size(), 40u);
  EXPECT_EQ(std::memcmp(body.data() + body.size() - 40, sent.data(), 40), 0);
}

// A model with a K of its own answers with that, whatever was asked.
TEST_F(Kserve, TakesTheFirstColumnsOfAFixedTopK) {
  std::string model(recorded::kModel.body);
  const std::string open = "[-1,-1]";
  for (size_t at = model.find(open); at != std::string::npos; at = model.find(open))
    model.replace(at, open.size(), "[-1,2]");
  serve({{"/v2/models/small", reply(200, model)}});
  const auto engine = ready();
  EXPECT_EQ(engine->abilities().max_top_k, 2);

  ScoreRequest of_one = question();
  of_one.top_k = 1;
  const Scored scored = engine->score(of_one, soon()).get();
  ASSERT_EQ(scored.ids.sizes(), (at::IntArrayRef{3, 1}));
  const auto* id = scored.ids.const_data_ptr<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(id, id + 3), (std::vector<int32_t>{368, 32, 249}));
  EXPECT_NEAR(scored.log_probs.const_data_ptr<float>()[1], -2.802842, 1e-5);
}

TEST_F(Kserve, GivesHiddenStatesAndRewards) {
  serve();
  auto engine = ready();
  ScoreRequest of_states = question();
  of_states.top_k = 0;
  const at::Tensor states = engine->hidden_states(of_states, soon()).get();
  EXPECT_EQ(states.sizes(), (at::IntArrayRef{3, 8}));
  EXPECT_NEAR(states.const_data_ptr<float>()[0], 1.116734, 1e-5);
  engine = ready();  // its first question is that of the record again
  EXPECT_NEAR(engine->reward({{5, 6}, {7, 8, 9}}, soon()).get(), -7.423241, 1e-5);
}

TEST_F(Kserve, RefusesQuestionsThatTheModelCannotBeAsked) {
  serve();
  const auto engine = this->engine(options());

  // Before its state is known nothing can be checked against it.
  test::expect_refused("wait for state()", [&] { engine->score(question(), soon()).get(); });
  engine->state(soon()).get();

  const size_t asked = journal_.lines().size();
  const auto expect_score = [&](const std::string& part, const ScoreRequest& request) {
    test::expect_refused(part, [&] { engine->score(request, soon()).get(); });
  };

  // Positions are of tokens that have one behind them, in order.
  expect_score("token_ids is empty", {});
  expect_score("positions is empty", {.token_ids = {1, 2}});
  expect_score("positions has 1;", {.token_ids = {1, 2}, .positions = {1}});
  expect_score("positions has 0;", {.token_ids = {1, 2, 3}, .positions = {0, 0}});
  expect_score("positions has -1;", {.token_ids = {1, 2, 3}, .positions = {-1}});

  // The model has 400 ids, takes 256 tokens and gives 64 of a top k.
  expect_score("token_ids has 400", {.token_ids = {1, 400, 3}, .positions = {0}});
  expect_score("token_ids has -1", {.token_ids = {1, -1, 3}, .positions = {0}});
  expect_score("takes 256", {.token_ids = std::vector<int32_t>(257), .positions = {0}});
  expect_score("gives at most 64", {.token_ids = {1, 2}, .positions = {0}, .top_k = 65});
  expect_score("top_k is -1", {.token_ids = {1, 2}, .positions = {0}, .top_k = -1});

  // What it does not give, or not in this way.
  for (const int64_t label : {-1, 1})
    test::expect_refused("label is " + std::to_string(label) + "; the scores of small are 1", [&] {
      engine->reward({{1}, {2}, label}, soon()).get();
    });
  test::expect_refused("top_k has no effect",
                       [&] { engine->hidden_states(question(), soon()).get(); });
  test::expect_refused("cannot draw", [&] { engine->draw({}, soon()).get(); });

  EXPECT_EQ(journal_.lines().size(), asked) << "something was sent all the same";
}

TEST_F(Kserve, TakesTheOnlyModelThereIs) {
  serve({{"/v2/repository/index", reply(200, R"([{"name":"small","version":"1"},)"
                                             R"({"name":"small","version":"2"}])")}});
  ExternalOptions any = options();
  any.served_model = "";
  EXPECT_EQ(engine(any)->state(soon()).get().served_model, "small");
}

TEST_F(Kserve, RefusesServersThatAreNotReadyOrNotTheRightOne) {
  const auto expect_state = [&](ErrorCode code, const std::string& part, Instead instead,
                                std::string model = "small") {
    serve(std::move(instead));
    ExternalOptions of = options();
    of.served_model = std::move(model);
    const auto engine = this->engine(of);
    expect_error(code, part, [&] { engine->state(soon()).get(); });
    EXPECT_FALSE(engine->abilities().scores);
  };

  // The server: ready, at this path, for this key.
  expect_state(ErrorCode::kUnavailable, "the server is not ready",
               {{"/v2/health/ready", reply(400, "")}});
  expect_state(ErrorCode::kMismatch, "check the path",
               {{"/v2/health/ready", reply(404, "")}, {"/v2", reply(404, "")}});
  expect_state(ErrorCode::kUnauthenticated, "check the key",
               {{"/v2/health/ready", reply(401, "who?")}});

  // The model: ready, and the one that is named.
  expect_state(ErrorCode::kUnavailable, "model \"small\" is not ready",
               {{"/v2/models/small/ready", reply(400, "")}});
  expect_state(ErrorCode::kMismatch, "no model \"big\"; it has \"faulty\", \"small\"", {}, "big");
  expect_state(ErrorCode::kInvalidArgument, "served_model: is missing", {}, "");

  // What the server says of itself and of the model.
  expect_state(ErrorCode::kMismatch, "does not have the extension binary_tensor_data",
               {{"/v2", reply(200, R"({"name":"x","version":"1","extensions":[]})")}});
  expect_state(ErrorCode::kCorrupt, "expected JSON, found \"<html>",
               {{"/v2", reply(200, "<html>")}});
  expect_state(ErrorCode::kCorrupt, "model: has no field \"inputs\"",
               {{"/v2/models/small", reply(200, R"({"name":"small"})")}});
}

TEST_F(Kserve, RefusesAnswersThatAreNone) {
  const recorded::Answer& good = recorded::kScores;
  const std::string octets = "application/octet-stream";
  expect_failure(ErrorCode::kMismatch, "text/html", reply_with(200, "text/html", "", "<html>"));
  expect_failure(ErrorCode::kMismatch, "no header Inference-Header-Content-Length",
                 reply_with(200, octets, "", good.body));
  expect_failure(ErrorCode::kCorrupt, "bytes behind its header",
                 reply_with(200, octets, "347", good.body.substr(0, 380)));
  expect_failure(ErrorCode::kUnavailable, "no score today", reply_with(recorded::kRaised));
  expect_failure(ErrorCode::kUnavailable, "'zzz' is not found", reply_with(recorded::kUnknown));
  expect_failure(ErrorCode::kResourceExhausted, "more than the tensors that were asked for",
                 "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
                 "Inference-Header-Content-Length: 347\r\nContent-Length: 1073741824\r\n\r\n" +
                     std::string(good.body));

  // With a Python back-end that has numpy 2, Triton's tensors have no bytes.
  expect_failure(ErrorCode::kMismatch, "application/json",
                 reply_with(200, "application/json", "", R"({"id":"retort-1"})"));
}

TEST_F(Kserve, RefusesNumbersThatCannotBe) {
  const auto with_float = [](size_t offset, float value) {
    std::string body(recorded::kScores.body);
    std::memcpy(body.data() + 347 + offset, &value, sizeof value);
    return reply_with(200, "application/octet-stream", "347", body);
  };
  expect_failure(ErrorCode::kCorrupt, "given_logprobs[1] is nan", with_float(4, std::nanf("")));
  expect_failure(ErrorCode::kCorrupt, "given_logprobs[2] is 0.5", with_float(8, 0.5));
  expect_failure(ErrorCode::kCorrupt, "topk_logprobs[0, 1] is -1.0", with_float(40, -1.0));
  expect_failure(ErrorCode::kCorrupt, "topk_ids[0, 0] is", with_float(12, -1.0));
}

// The first connection breaks in the middle of an answer, and before one.
TEST_F(Kserve, AsksOnceMoreWhenTheConnectionBreaks) {
  std::atomic<int> infers{0};
  const ScriptedServer server([&](test::Peer& peer) {
    while (const auto request = peer.read()) {
      if (request->target.ends_with("/infer") && infers++ % 2 == 0) {
        peer.write(infers == 1 ? "HTTP/1.1 200 OK\r\nContent-Length: 407\r\n\r\n{\"id\"" : "");
        return;
      }
      if (!peer.write(answer_of(*request, {}))) return;
    }
  });
  for (int i = 0; i < 2; ++i) {
    const auto engine = make_engine(options(), server.url(), "");
    engine->state(soon()).get();
    EXPECT_EQ(engine->score(question(), soon()).get().given.size(), 3u);
  }
  EXPECT_EQ(infers, 4);
}

TEST_F(Kserve, WaitsForAServerThatIsBusy) {
  std::atomic<int> infers{0};
  const ScriptedServer server(test::answer_all([&](const Received& request) {
    if (request.target.ends_with("/infer") && infers++ == 0)
      return reply(503, "busy", "Retry-After: 0\r\n");
    return answer_of(request, {});
  }));
  const auto engine = make_engine(options(), server.url(), "");
  engine->state(soon()).get();
  EXPECT_EQ(engine->score(question(), soon()).get().given.size(), 3u);
  EXPECT_EQ(infers, 2);
}

TEST_F(Kserve, LoadsWeightsThroughTheRepository) {
  serve();
  const auto engine = ready();
  const size_t before = journal_.lines().size();
  engine->load_weights("/new/weights", soon()).get();
  const std::vector<std::string> lines = journal_.lines();
  ASSERT_GE(lines.size(), before + 8);
  EXPECT_EQ(lines[before], "POST /v2/repository/models/small/unload");
  EXPECT_EQ(lines[before + 1], "POST /v2/repository/models/small/load");
  EXPECT_EQ(lines.back(), "GET /v2/models/small/config") << "it is looked at once more";

  const Json sent = Json::parse(journal_.bodies()[before + 1]);
  Json expected = Json::parse(recorded::kConfiguration.body);
  expected["parameters"]["weights"]["string_value"] = "/new/weights";
  EXPECT_EQ(Json::parse(sent["parameters"]["config"].get<std::string>()), expected);
  test::expect_refused("absolute", [&] { engine->load_weights("weights", soon()).get(); });
}

TEST_F(Kserve, SaysWhyWeightsWereNotLoaded) {
  serve({{"/v2/repository/models/small/load",
          reply(400, R"({"error":"failed to load 'small', no such folder"})")}});
  const auto engine = ready();
  expect_error(ErrorCode::kMismatch, "no such folder",
               [&] { engine->load_weights("/x", soon()).get(); });
}

TEST_F(Kserve, LoadsNoWeightsUnlessItIsToldTo) {
  serve();
  ExternalOptions fixed = options();
  fixed.weights.via = WeightRoute::kNone;
  const auto engine = this->engine(fixed);
  engine->state(soon()).get();
  test::expect_refused("weights.via", [&] { engine->load_weights("/x", soon()).get(); });
}

TEST(KserveOptions, AreChecked) {
  ExternalOptions options{.engine = EngineKind::kKserve};
  const auto make = [&](const std::string& url) { make_engine(options, url, ""); };
  make("http://far.example:8000");
  options.tensors = {{"logits", "x"}};
  test::expect_refused("tensors", [&] { make("http://far.example:8000"); });
  options.tensors.clear();
  options.weights.via = WeightRoute::kGguf;
  test::expect_refused("weights.via", [&] { make("http://127.0.0.1:8000"); });
  options.weights.via = WeightRoute::kRepository;
  test::expect_error(ErrorCode::kUnauthenticated, "allow_plain_admin",
                     [&] { make("http://far.example:8000"); });
  make("https://far.example:8000");
  make("http://127.0.0.1:8000");
  make("http://[::1]:8000");
  options.allow_plain_admin = true;
  make("http://far.example:8000");
}

}  // namespace
}  // namespace retort::engines
