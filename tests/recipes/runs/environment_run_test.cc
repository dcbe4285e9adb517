// Whole grpo runs whose completions are episodes with an environment: a program that answers each
// turn of the model as a user would, as a function of its seed and of what was said.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/recipes/run_support/disturbed_run.h"

namespace retort::test {
namespace {

// A conversation of words with hermes' calls, which an untrained model never says. <eos> is 63.
constexpr const char* kTemplate =
    "{% if tools %}w59 <tool_call> {% endif %}"
    "{% for m in messages %}w60 {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %} <eos> w61 {% endfor %}"
    "{% if add_generation_prompt %}w60 {% endif %}";

// Answers two turns with words of its own, the third ends the episode. Its reward is a function of
// the seed and of all that the model said.
constexpr const char* kEnvironment = R"(
import json, sys
episodes = {}
def say(answer):
    print(json.dumps(answer), flush=True)
print(json.dumps({"retort_environment": 1, "user_turns": True}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if "open" in ask:
        episodes[ask["open"]] = {"seed": ask["seed"], "said": 0, "turns": 0}
        say({"open": ask["open"], "tools": [],
             "messages": [{"role": "user", "content": "w%d" % (ask["seed"] % 20)}]})
    elif "step" in ask:
        episode = episodes[ask["step"]]
        episode["turns"] += 1
        episode["said"] += sum(map(ord, ask["text"]))
        done = episode["turns"] == 3
        messages = [] if done else [{"role": "user", "content": "w7 w%d" % episode["turns"]}]
        say({"step": ask["step"], "messages": messages, "done": done})
    elif "close" in ask:
        episode = episodes.pop(ask["close"], {"seed": 0, "said": 0, "turns": 0})
        say({"close": ask["close"], "reward": (episode["seed"] + episode["said"]) % 7 / 7,
             "metrics": {"turns": episode["turns"]}})
)";

// Both kills come while the run has steps to go.
constexpr int64_t kSteps = 16;
const std::vector<RoleSignal> kLosses{{.rows = 2, .role = "tools"},
                                      {.rows = 6, .role = "generator"}};

// The run that nothing disturbs is made once, for all tests.
class EnvironmentRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_.emplace();
    fs::copy(goldens() / "qwen3", *folder_ / "model", fs::copy_options::recursive);
    std::ofstream(*folder_ / "model/chat_template.jinja") << kTemplate;
    std::ofstream(*folder_ / "environment.py") << kEnvironment;
    std::ofstream prompts(*folder_ / "prompts.jsonl");
    for (int i = 0; i < 10; ++i)
      prompts << R"({"messages": [{"role": "user", "content": "w)" << 10 + 3 * i << "\"}]}\n";
    prompts.close();
    undisturbed_ = retort(launch(*folder_ / "undisturbed"), std::chrono::seconds(120));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { ASSERT_EQ(undisturbed_.exit_code, 0) << undisturbed_.output; }

  static std::vector<std::string> launch(const fs::path& folder) {
    OnPolicyRecipe recipe{.steps = kSteps};
    recipe.data = *folder_ / "prompts.jsonl";
    recipe.student_model = recipe.generator_model = (*folder_ / "model").string();
    recipe.rewards = "[{type: environment}]";
    recipe.generation["save_samples"] = "true";
    recipe.generation["max_new_tokens"] = "5";
    return {"launch", write_on_policy(folder, recipe).string(),
            "roles.tools={environment: {command: [python3, " +
                (*folder_ / "environment.py").string() + "]}}",
            "environment={role: tools, max_turns: 4, max_tokens: 40}"};
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
    const auto ids = sample.at("token_ids").get<std::vector<int32_t>>();
    const auto& logps = sample.at("sampling_logps");
    EXPECT_EQ(logps.size(), ids.size());
    size_t place = 0;
    std::string last = "environment";
    for (const auto& span : sample.at("spans")) {
      // Turns alternate, and what the environment said has no probability.
      EXPECT_NE(span.at(0), last);
      last = span.at(0);
      const size_t end = place + span.at(1).get<size_t>();
      ASSERT_LE(end, ids.size());
      answered += last == "environment";
      for (; place < end; ++place)
        EXPECT_EQ(logps.at(place).is_null(), last == "environment") << place;
    }
    EXPECT_EQ(place, ids.size()) << "spans are of all tokens";
    EXPECT_EQ(sample.at("reward"), sample.at("rewards").at("environment"));
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

}  // namespace
}  // namespace retort::test
