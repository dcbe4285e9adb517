// Whole grpo runs whose completions are episodes with an environment.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/http/scripted_server.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/environment_support.h"
#include "tests/recipes/run_support/killed_run.h"

namespace retort::test {
namespace {

// All kills come while the run has steps to go.
constexpr int64_t kSteps = 16;
const std::vector<RoleSignal> kLosses{{.rows = 2, .role = "tools"},
                                      {.rows = 6, .role = "generator"},
                                      {.rows = 10, .role = "judge"}};

// Episodes that their environment rewards, and a model that has a process of its own.
std::vector<std::string> launch_scored(const fs::path& files, const fs::path& folder,
                                       int64_t save_steps = 0) {
  return launch_with_environment(
      files, folder, {.steps = kSteps, .save_steps = save_steps},
      {"rewards=[{type: environment}, {type: model, role: judge, label: 1, weight: 0.5}]",
       "roles.judge={model: " + (goldens() / "reward_two").string() + ", world: {threads: 1}}"});
}

// The run that nothing disturbs is made once, for all tests.
class EnvironmentRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_.emplace();
    write_environment(folder_->path());
    undisturbed_ = retort(launch(*folder_ / "undisturbed"), std::chrono::seconds(120));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { ASSERT_EQ(undisturbed_.exit_code, 0) << undisturbed_.output; }

  static std::vector<std::string> launch(const fs::path& folder) {
    return launch_scored(folder_->path(), folder);
  }
  static fs::path undisturbed_run() { return *folder_ / "undisturbed/run"; }

  static inline std::optional<TemporaryFolder> folder_;
  static inline CommandResult undisturbed_;
};

TEST_F(EnvironmentRun, TrainsOnWhatTheModelSaidInSeveralTurns) {
  const auto samples = read_samples(undisturbed_run());
  ASSERT_EQ(samples.size(), static_cast<size_t>(kSteps) * 8);

  size_t answered = 0;  // episodes of several turns
  for (const auto& [key, sample] : samples) {
    // What the environment said has no probability.
    const auto& logps = sample.at("sampling_logps");
    ASSERT_EQ(logps.size(), sample.at("token_ids").size());
    const std::vector<bool> own = own_tokens(sample);
    for (size_t place = 0; place < own.size(); ++place)
      EXPECT_EQ(logps.at(place).is_null(), !own[place]) << place;
    answered += sample.at("spans").size() > 1;
    const nlohmann::json& rewards = sample.at("rewards");
    EXPECT_NEAR(sample.at("reward").get<double>(),
                rewards.at("environment").get<double>() + 0.5 * rewards.at("model").get<double>(),
                1e-6);
    EXPECT_EQ(sample.at("prompt_ids").back(), 60) << "the prompt for the model's first turn";

    // The text is of these: the row's message, the environment's, and the beginning of a turn.
    const auto prompt = sample.at("prompt").get<std::string>();
    size_t messages = 0;
    for (size_t at = prompt.find("w60"); at != std::string::npos; at = prompt.find("w60", at + 1))
      ++messages;
    EXPECT_EQ(messages, 3u) << prompt;
  }
  EXPECT_GT(answered, 0u) << "or the test shows nothing";

  for (const double turns : column(undisturbed_run(), "episodes/mean_turns")) {
    EXPECT_GE(turns, 1);
    EXPECT_LE(turns, 3);
  }
  EXPECT_EQ(column(undisturbed_run(), "environment/turns").size(), static_cast<size_t>(kSteps));
}

// The environment is a function of its seed, so that what is begun anew is what was lost.
TEST_F(EnvironmentRun, IsTheSameWhoeverIsLost) {
  const DisturbedRun run = disturb(*folder_ / "disturbed", kSteps, kLosses, launch);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.output;

  EXPECT_EQ(timeless_metrics(run.folder / "run"), timeless_metrics(undisturbed_run()));
  EXPECT_EQ(read_samples(run.folder / "run"), read_samples(undisturbed_run()));
}

// The student dies in the midst of episodes, by itself or with its launcher.
TEST(EnvironmentKilled, ResumesBitForBit) {
  const LaunchIn launch = [](const TemporaryFolder& data, const fs::path& folder) {
    if (!fs::exists(data / "model")) write_environment(data.path());
    return launch_scored(data.path(), folder, /*save_steps=*/3);
  };
  expect_same_after_kills({.name = "episodes", .steps = kSteps, .launch = launch});
}

// That environment as a service, which is often busy or slow and fails each task once.
class BusyService {
 public:
  std::string url() const { return server_.url("/env"); }
  int num_failed() {
    const std::lock_guard lock(mutex_);
    return num_failed_;
  }

 private:
  using Json = nlohmann::ordered_json;
  struct Played {
    uint64_t seed = 0;
    int64_t said = 0, turns = 0;
  };

  void serve(Peer& peer) {
    while (const std::optional<Received> received = peer.read()) {
      const std::string answer = answer_to(Json::parse(received->body));
      // A part of it comes late.
      const size_t half = answer.size() / 2;
      peer.write(answer.substr(0, half));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      peer.write(answer.substr(half));
    }
  }

  std::string answer_to(const Json& request) {
    const std::lock_guard lock(mutex_);
    if (request.contains("retort_environment"))
      return reply(200, R"({"retort_environment": 1, "user_turns": true})");
    if (const int number = num_asked_++; number % 17 == 1)
      return reply(number % 2 == 0 ? 429 : 503, "later", "Retry-After: 0\r\n");
    if (request.contains("open")) return reply(200, open(request));
    if (request.contains("close")) return reply(200, close(request));

    Played& episode = played_[request.at("step")];
    if (failed_.insert(episode.seed).second) {
      ++num_failed_;
      return reply(500, "no");
    }
    return reply(200, step(request, episode));
  }

  std::string open(const Json& request) {
    const uint64_t seed = request.at("seed");
    played_[request.at("open")] = {.seed = seed};
    const Json word{{"role", "user"}, {"content", "w" + std::to_string(seed % 20)}};
    return Json{{"open", request["open"]}, {"messages", Json::array({word})}}.dump();
  }
  static std::string step(const Json& request, Played& episode) {
    const std::string text = request.at("text");
    episode.said += std::accumulate(text.begin(), text.end(), int64_t{0});
    const bool done = ++episode.turns == 3;
    Json messages = Json::array();
    if (!done)
      messages.push_back({{"role", "user"}, {"content", "w7 w" + std::to_string(episode.turns)}});
    return Json{{"step", request["step"]}, {"messages", messages}, {"done", done}}.dump();
  }
  std::string close(const Json& request) {
    const Played episode = played_[request.at("close")];
    const uint64_t points = (episode.seed + static_cast<uint64_t>(episode.said)) % 7;
    return Json{{"close", request["close"]},
                {"reward", static_cast<double>(points) / 7},
                {"metrics", {{"turns", episode.turns}}}}
        .dump();
  }

  std::mutex mutex_;
  std::map<uint64_t, Played> played_;  // by number of the episode
  std::set<uint64_t> failed_;          // seeds
  int num_asked_ = 0, num_failed_ = 0;
  const ScriptedServer server_{[this](Peer& peer) { serve(peer); }};
};

TEST_F(EnvironmentRun, IsTheSameByABusyService) {
  BusyService service;
  std::vector<std::string> words = launch(*folder_ / "busy");
  words.push_back("roles.tools={environment: {url: " + service.url() + "}}");
  const CommandResult result = retort(words, std::chrono::seconds(240));
  ASSERT_EQ(result.exit_code, 0) << result.output;

  EXPECT_GT(service.num_failed(), 1) << "or the test shows little";
  EXPECT_EQ(read_samples(*folder_ / "busy/run"), read_samples(undisturbed_run()));
  EXPECT_EQ(timeless_metrics(*folder_ / "busy/run"), timeless_metrics(undisturbed_run()));
}

}  // namespace
}  // namespace retort::test
