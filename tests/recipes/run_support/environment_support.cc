#include "tests/recipes/run_support/environment_support.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/calls_template.h"

namespace retort::test {
namespace {

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

}  // namespace

void write_environment(const fs::path& folder) {
  fs::copy(goldens() / "qwen3", folder / "model", fs::copy_options::recursive);
  std::ofstream(folder / "model/chat_template.jinja") << kCallsTemplate;
  std::ofstream(folder / "environment.py") << kEnvironment;
  std::ofstream prompts(folder / "prompts.jsonl");
  for (int i = 0; i < 10; ++i)
    prompts << R"({"messages": [{"role": "user", "content": "w)" << 10 + 3 * i << "\"}]}\n";
}

std::vector<std::string> launch_with_environment(const fs::path& files, const fs::path& folder,
                                                 OnPolicyRecipe recipe,
                                                 const std::vector<std::string>& settings) {
  recipe.data = files / "prompts.jsonl";
  recipe.student_model = recipe.generator_model = (files / "model").string();
  recipe.rewards = "[{type: environment}]";
  recipe.generation["save_samples"] = "true";
  recipe.generation["max_new_tokens"] = "5";
  std::vector<std::string> arguments{"launch", write_on_policy(folder, recipe).string(),
                                     "roles.tools={environment: {command: [python3, " +
                                         (files / "environment.py").string() + "]}}",
                                     "environment={role: tools, max_turns: 4, max_tokens: 40}"};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  return arguments;
}

std::vector<bool> own_tokens(const nlohmann::json& row) {
  std::vector<bool> own;
  bool last = false;
  for (const auto& span : row.at("spans")) {
    const bool model = span.at(0) == "model";
    EXPECT_NE(model, last) << "turns alternate, and the model's comes first";
    last = model;
    own.insert(own.end(), span.at(1).get<size_t>(), model);
  }
  return own;
}

}  // namespace retort::test
