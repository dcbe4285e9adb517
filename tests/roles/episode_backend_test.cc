// Whatever an engine and an environment do, each episode comes to an end, and says which.
#include "roles/episodes/episode_backend.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "roles/generator/requests.h"
#include "tests/roles/episode_support.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using Json = nlohmann::ordered_json;
using test::code_of;

class EpisodeBackendTest : public testing::Test {
 protected:
  std::unique_ptr<EpisodeBackend> make(EpisodeOptions options = {}, int64_t positions = 0) {
    auto inner = std::make_unique<TalkingBackend>();
    engine = inner.get();
    engine->positions = positions;
    return episodes_over(std::move(inner), environment, options);
  }
  // Says one call of a tool, then that it is done.
  static models::Completion call_then_end(const GenerateRequest& turn) {
    return TalkingBackend::turn_of(turn.continues == 0 ? add_call(1) : "Done.");
  }

  std::shared_ptr<ScriptedEnvironment> environment = std::make_shared<ScriptedEnvironment>();
  TalkingBackend* engine = nullptr;
};

// The first turns of a prompt have one prompt; then each goes its own way, with all tokens so far.
TEST_F(EpisodeBackendTest, EachLaterTurnIsARequestOfItsOwn) {
  const auto backend = make();
  engine->say = call_then_end;
  const uint64_t number = backend->submit(episode_request(3, 2, 2));
  const std::vector<FinishedSample> samples = all_of(*backend);
  ASSERT_EQ(samples.size(), 4u);
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].request, number);
    EXPECT_EQ(samples[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(record_of(samples[i].completion)["calls"], 1);
    EXPECT_EQ(record_of(samples[i].completion)["reward"], i < 2 ? 3.5 : 4.0) << "by its seed";
  }

  ASSERT_EQ(engine->asked.size(), 2u + 4u);
  std::map<int64_t, std::vector<int64_t>> begins;
  for (const GenerateRequest& turn : engine->asked) {
    EXPECT_EQ(turn.step, 3);
    EXPECT_EQ(turn.num_generations, turn.continues == 0 ? 2 : 1);
    EXPECT_TRUE(turn.episodes.empty());
    EXPECT_NO_THROW(check_request(turn));
    ASSERT_EQ(turn.cu_seqlens.numel(), 2);
    for (int64_t i = 0; i < turn.sample_ids.numel(); ++i)
      begins[turn.sample_ids[i].item<int64_t>()].push_back(turn.continues);
  }
  ASSERT_EQ(begins.size(), 4u);
  for (const auto& [sample, places] : begins) {
    ASSERT_EQ(places.size(), 2u) << sample;
    EXPECT_EQ(places[0], 0);
    EXPECT_GT(places[1], 0);
  }
  EXPECT_EQ(environment->opened[0].row, row_of("Task 0"));
}

// Of a first turn's prompt nothing is history, and what is behind the history is new, whatever the
// engine says of it.
TEST_F(EpisodeBackendTest, WhatTheCacheKeptOfEarlierTurnsIsTold) {
  const auto backend = make({.max_turns = 3});
  EXPECT_EQ(backend->summary(), "");
  int64_t history = 0, kept = 0, said = 0;
  engine->say = [&](const GenerateRequest& turn) {
    models::Completion answer = call_then_end(turn);
    const int64_t prompt = turn.prompt_ids.numel();
    if (turn.continues > 0) {
      history += said;
      kept += said - 3;
    }
    answer.reused_tokens = turn.continues > 0 ? said - 3 : prompt;
    said = prompt + static_cast<int64_t>(answer.token_ids.size());
    return answer;
  };
  backend->submit(episode_request(1, 1, 1));
  all_of(*backend);
  ASSERT_GT(history, 0);
  EXPECT_EQ(backend->summary(), "; of " + std::to_string(history) + " tokens before later turns " +
                                    std::to_string(kept) + " were in the cache");

  // An engine may have kept the beginning of the answer, too, from another episode.
  engine->say = [&](const GenerateRequest& turn) {
    models::Completion answer = call_then_end(turn);
    answer.reused_tokens = turn.prompt_ids.numel();
    if (turn.continues == 0)
      said = turn.prompt_ids.numel() + static_cast<int64_t>(answer.token_ids.size());
    return answer;
  };
  backend->submit(episode_request(1, 1, 1));
  all_of(*backend);
  EXPECT_EQ(backend->summary(),
            "; of " + std::to_string(history + said) + " tokens before later turns " +
                std::to_string(kept + said) + " were in the cache");
}

// One that is opened late does not hold up the others for long.
TEST_F(EpisodeBackendTest, EpisodesOfAPromptWaitForEachOtherForAMoment) {
  environment->hangs = [](const std::string& verb, uint64_t episode) {
    return verb == "open" && episode == 2;
  };
  const auto backend = make();
  engine->say = call_then_end;
  const uint64_t request = backend->submit(episode_request(1, 1, 3));
  std::vector<FinishedSample> samples;
  const Deadline deadline = Deadline::after(60s);
  while (samples.size() < 2 && !deadline.expired()) {
    ASSERT_TRUE(backend->step());
    for (FinishedSample& sample : backend->finished())
      samples.push_back(std::move(sample));
  }
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(engine->asked.at(0).num_generations, 2);
  backend->cancel(request);
  EXPECT_FALSE(backend->step());
}

TEST_F(EpisodeBackendTest, RequestsWithoutEpisodesPassThrough) {
  const auto backend = make();
  engine->say = call_then_end;
  const uint64_t episodes = backend->submit(episode_request(1, 1, 2)),
                 plain = backend->submit(generate_request(2, 0, {{1, 2}, {3}}, 2)),
                 more = backend->submit(episode_request(3, 1, 1));
  EXPECT_EQ((std::set<uint64_t>{episodes, plain, more}.size()), 3u);
  const std::vector<FinishedSample> samples = all_of(*backend);
  std::map<uint64_t, int64_t> counts;
  for (const FinishedSample& sample : samples) {
    ++counts[sample.request];
    EXPECT_EQ(sample.completion.episode.empty(), sample.request == plain);
    EXPECT_EQ(sample.completion.spans.empty(), sample.request == plain);
  }
  EXPECT_EQ(counts, (std::map<uint64_t, int64_t>{{episodes, 2}, {plain, 4}, {more, 1}}));
}

TEST_F(EpisodeBackendTest, AnEnvironmentThatFailsForGoodLeavesNoReward) {
  environment->fails = [](const std::string& verb, uint64_t) -> std::optional<Error> {
    if (verb != "step") return std::nullopt;
    return Error(ErrorCode::kCorrupt, "tools/0: line 14 is no JSON");
  };
  const auto backend = make({.restarts = 2});
  engine->say = call_then_end;
  backend->submit(episode_request(1, 1, 1));
  const std::vector<FinishedSample> samples = all_of(*backend);
  ASSERT_EQ(samples.size(), 1u);
  const Json record = record_of(samples[0].completion);
  EXPECT_TRUE(record["reward"].is_null());
  EXPECT_NE(record["unscorable"].get<std::string>().find("line 14"), std::string::npos);
  EXPECT_EQ(environment->opened.size(), 3u);
  EXPECT_EQ(environment->turns.size(), 3u);

  // Every attempt is another episode to the environment, with the same seed.
  std::set<uint64_t> numbers;
  for (const OpenEpisode& opened : environment->opened) {
    numbers.insert(opened.episode);
    EXPECT_EQ(opened.seed, 7u);
  }
  EXPECT_EQ(numbers.size(), 3u);
}

TEST_F(EpisodeBackendTest, WhatAnEnvironmentMayNotSayIsAFailure) {
  environment->on_step = [](const EpisodeTurn&) { return EpisodeAnswer{.messages = "7"}; };
  const auto backend = make({.restarts = 0});
  engine->say = call_then_end;
  backend->submit(episode_request(1, 1, 1));
  const Json record = record_of(all_of(*backend).at(0).completion);
  EXPECT_NE(record["unscorable"].get<std::string>().find("no JSON array"), std::string::npos);
  EXPECT_EQ(environment->closed.size(), 1u);
}

TEST_F(EpisodeBackendTest, ACallThatIsNotAnsweredIsGivenUp) {
  for (const std::string_view hung : {"open", "step", "close"}) {
    environment = std::make_shared<ScriptedEnvironment>();
    environment->hangs = [&](const std::string& verb, uint64_t) { return verb == hung; };
    // Only an open may wait for as long as the whole episode.
    const Duration whole(hung == "open" ? 90 : 60'000);
    const auto backend = make({.timeout = Duration(30), .episode_timeout = whole, .restarts = 1});
    engine->say = call_then_end;
    backend->submit(episode_request(1, 1, 1));
    const std::vector<FinishedSample> samples = all_of(*backend);
    ASSERT_EQ(samples.size(), 1u) << hung;
    const auto why = record_of(samples[0].completion)["unscorable"].get<std::string>();
    EXPECT_NE(why.find(hung == "open" ? "environment.episode_timeout" : "environment.timeout"),
              std::string::npos)
        << why;
    EXPECT_EQ(environment->opened.size(), 2u) << hung;
    EXPECT_GE(environment->cancelled, 2) << hung;
    EXPECT_GE(environment->closed.size(), 2u) << hung << ": nothing of it is left there";
  }
}

// Each answer comes in time, and all together do not.
TEST_F(EpisodeBackendTest, AnEpisodeMayWaitForItsEnvironmentForSoLong) {
  environment->delay = 25ms;
  const auto backend = make({.max_turns = 100,
                             .timeout = Duration(100),
                             .episode_timeout = Duration(100),
                             .restarts = 0});
  engine->say = [](const GenerateRequest&) { return TalkingBackend::turn_of(add_call(1)); };
  backend->submit(episode_request(1, 1, 1));
  const Json record = record_of(all_of(*backend).at(0).completion);
  EXPECT_NE(record["unscorable"].get<std::string>().find("episode_timeout, 100ms"),
            std::string::npos);
  EXPECT_LT(record["turns"], 5);
}

// While all episodes wait, nothing spins, and the other ranks of the replica hear of it.
TEST_F(EpisodeBackendTest, WaitingCostsLittle) {
  environment->hangs = [](const std::string& verb, uint64_t) { return verb == "step"; };
  const auto backend = make({.restarts = 0});
  engine->say = call_then_end;
  const uint64_t request = backend->submit(episode_request(1, 1, 2));
  const auto end = std::chrono::steady_clock::now() + 300ms;
  while (std::chrono::steady_clock::now() < end)
    ASSERT_TRUE(backend->step());
  EXPECT_LT(engine->steps, 100);
  EXPECT_GT(engine->idles, 0);
  backend->cancel(request);
  EXPECT_FALSE(backend->step());
}

TEST_F(EpisodeBackendTest, ACancelledRequestIsClosedAtTheEnvironment) {
  environment->episodes = 2;
  environment->hangs = [](const std::string& verb, uint64_t episode) {
    return verb == "step" && episode == 1;
  };
  const auto backend = make();
  engine->say = [](const GenerateRequest&) { return TalkingBackend::turn_of(add_call(1)); };
  const uint64_t request = backend->submit(episode_request(1, 1, 3));
  while (environment->turns.size() < 2)
    ASSERT_TRUE(backend->step());
  engine->holds = true;
  ASSERT_TRUE(backend->step());

  // One episode waits for the environment, one for the engine, one for room.
  EXPECT_EQ(environment->opened.size(), 2u);
  EXPECT_EQ(engine->asked.size(), 2u) << "the first turns of both, and another of one";
  backend->cancel(request);
  EXPECT_EQ(environment->closed.size(), 2u);
  EXPECT_EQ(environment->cancelled, 1);
  EXPECT_EQ(engine->log, std::vector<std::string>{"cancel 2"});
  EXPECT_TRUE(backend->finished().empty());
  EXPECT_FALSE(backend->step());

  // What is asked next begins well.
  engine->holds = false;
  engine->say = call_then_end;
  environment->hangs = nullptr;
  backend->submit(episode_request(2, 1, 3));
  EXPECT_EQ(all_of(*backend).size(), 3u);
}

TEST_F(EpisodeBackendTest, EpisodesWaitForRoom) {
  environment->episodes = 2;
  environment->delay = 2ms;
  const auto backend = make();
  engine->say = call_then_end;
  backend->submit(episode_request(1, 3, 2));
  EXPECT_EQ(all_of(*backend).size(), 6u);
  EXPECT_LE(environment->most_open, 2);
}

// Others have episodes there, too: that is no failure, and costs no attempt.
TEST_F(EpisodeBackendTest, AnEnvironmentThatIsFullIsAskedAgain) {
  environment->fails = [&](const std::string& verb, uint64_t) -> std::optional<Error> {
    if (verb != "open" || environment->opened.size() > 2) return std::nullopt;
    return Error(ErrorCode::kResourceExhausted, "32 episodes are open");
  };
  const auto backend = make({.restarts = 0});
  engine->say = call_then_end;
  backend->submit(episode_request(1, 1, 1));
  const Json record = record_of(all_of(*backend).at(0).completion);
  EXPECT_FALSE(record.contains("unscorable")) << record;
  EXPECT_EQ(record["restarts"], 0);
  EXPECT_EQ(environment->opened.size(), 3u);
}

TEST_F(EpisodeBackendTest, ATurnThatTheEngineRefusesFailsItsRequestAlone) {
  const auto backend = make();
  engine->say = call_then_end;
  const uint64_t bad = backend->submit(episode_request(1, 1, 2));
  while (environment->turns.size() < 2)
    ASSERT_TRUE(backend->step());
  engine->refuses = true;  // the second turns
  ASSERT_TRUE(backend->step());
  const std::vector<FinishedSample> failed = backend->finished();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].request, bad);
  EXPECT_EQ(code_of([&] { std::rethrow_exception(failed[0].error); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(environment->closed.size(), 2u);

  engine->refuses = false;
  engine->say = call_then_end;
  backend->submit(episode_request(2, 1, 2));
  EXPECT_EQ(all_of(*backend).size(), 2u);
}

TEST_F(EpisodeBackendTest, WhatCannotBeEpisodesIsRefused) {
  const auto backend = make();
  const auto refused = [&](const std::function<void(GenerateRequest&)>& spoil) {
    GenerateRequest request = episode_request(1, 2, 1);
    spoil(request);
    return code_of([&] { backend->submit(request); });
  };
  EXPECT_EQ(refused([](auto& r) { r.draw.stop = {"x"}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& r) { r.draw.stop_token_ids = {3}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& r) { r.episodes.pop_back(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& r) { r.episodes[1].row = "{}"; }), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(backend->step()) << "nothing of these is left";
  EXPECT_TRUE(environment->opened.empty());
}

// It would be the next time, too.
TEST_F(EpisodeBackendTest, APromptWithoutRoomForAnAnswerFailsItsRequest) {
  const auto backend = make({}, /*positions=*/5);
  const uint64_t number = backend->submit(episode_request(1, 1, 2));
  const std::vector<FinishedSample> samples = all_of(*backend);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].request, number);
  test::expect_refused("leaves the model no position",
                       [&] { std::rethrow_exception(samples[0].error); });
  EXPECT_EQ(environment->closed.size(), 2u);
}

// What an environment begins with may be too much for the model: no other row suffers for it.
TEST_F(EpisodeBackendTest, AnOpeningWithoutRoomForAnAnswerIsTheEnvironmentsFailure) {
  std::string said(2000, 'x');
  environment->opening = R"([{"role": "user", "content": ")" + said + R"("}])";
  const auto backend = make({}, /*positions=*/500);
  backend->submit(episode_request(1, 1, 1));
  const Json record = record_of(all_of(*backend).at(0).completion);
  EXPECT_TRUE(record["reward"].is_null());
  const auto why = record["unscorable"].get<std::string>();
  EXPECT_NE(why.find("environment tools/0: with the tools, messages and append"), why.npos) << why;
  EXPECT_NE(why.find("Let it begin with less"), why.npos) << why;
  EXPECT_EQ(environment->opened.size(), 1u) << "it would be so again";
  EXPECT_EQ(environment->closed.size(), 1u);
}

TEST_F(EpisodeBackendTest, WhatAnEnvironmentRefusesIsNotAskedAgain) {
  for (const std::string_view refused : {"open", "close"}) {
    environment = std::make_shared<ScriptedEnvironment>();
    environment->fails = [&](const std::string& verb, uint64_t) -> std::optional<Error> {
      if (verb != refused) return std::nullopt;
      return Error(ErrorCode::kInvalidArgument, "tools/0: no such task");
    };
    const auto backend = make({.restarts = 2});
    engine->say = call_then_end;
    backend->submit(episode_request(1, 1, 1));
    const Json record = record_of(all_of(*backend).at(0).completion);
    EXPECT_NE(record["unscorable"].get<std::string>().find("no such task"), std::string::npos);
    EXPECT_EQ(record["restarts"], 0);
    EXPECT_EQ(environment->opened.size(), 1u) << refused;
  }
}

// What is down for a moment does not cost all attempts at once, nor hold up other episodes.
TEST_F(EpisodeBackendTest, AFailedEpisodeBeginsAnewAfterAPause) {
  environment->fails = [](const std::string& verb, uint64_t episode) -> std::optional<Error> {
    if (verb != "step" || episode != 1) return std::nullopt;
    return Error(ErrorCode::kCorrupt, "tools/0: half a line");
  };
  const auto backend = make({.restarts = 1});
  engine->say = call_then_end;
  const auto begin = std::chrono::steady_clock::now();
  backend->submit(episode_request(1, 2, 1));
  std::vector<FinishedSample> samples;
  const Deadline deadline = Deadline::after(60s);
  while (samples.empty() && !deadline.expired()) {
    ASSERT_TRUE(backend->step());
    samples = backend->finished();
  }
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].index, 1) << "while the other one waits";
  EXPECT_EQ(all_of(*backend).size(), 1u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);

  // A lost replica is away by itself.
  EXPECT_EQ(pause_before(1), 1s);
  EXPECT_EQ(pause_before(2), 2s);
  EXPECT_EQ(pause_before(60), 30s);
}

// The environment's own words about its timeout come a little after that.
TEST_F(EpisodeBackendTest, AnAnswerMayComeALittleAfterTheTimeout) {
  environment->delay = 120ms;
  const auto backend = make({.timeout = Duration(100), .restarts = 0});
  engine->say = call_then_end;
  backend->submit(episode_request(1, 1, 1));
  const Json record = record_of(all_of(*backend).at(0).completion);
  EXPECT_FALSE(record.contains("unscorable")) << record;
  EXPECT_EQ(EpisodeOptions{}.patience(), 70s);
}

TEST_F(EpisodeBackendTest, AnEnvironmentThatDoesNotStartIsNamed) {
  environment->not_ready = true;
  const auto backend = make();
  const Error error = test::error_of([&] { backend->submit(episode_request(1, 1, 1)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("it did not start"), std::string::npos);
}

TEST_F(EpisodeBackendTest, StoppingEndsBoth) {
  const auto backend = make();
  backend->stop();
  EXPECT_TRUE(environment->stopped);
}

}  // namespace
}  // namespace retort::roles
