// Recipes with a generator or a reference on the nano checkpoints, and what their runs wrote.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"
#include "tests/support/wait_until.h"

namespace retort::test {

// 8 completions a step (2 prompts of 4), AdamW 1e-3, no schedule; 10 prompts, or 12 pairs for dpo,
// in `data`.
struct OnPolicyRecipe {
  std::string recipe = "grpo";
  fs::path data;                        // write_prompts, write_pairs
  std::string student_model = "qwen3";  // a golden model, or a path
  std::string generator_model = "qwen3";
  std::string reference, teacher;  // golden models or paths; "": no such role
  int64_t dp = 1, accumulation = 1, rows = 8, steps = 4, save_steps = 0, generators = 1;
  // of the recipe's own name (on_policy_distill: distill), key -> YAML
  std::map<std::string, std::string> block;
  std::map<std::string, std::string> generation{{"num_generations", "4"}, {"max_new_tokens", "10"}};
  std::string rewards =
      "[{type: length, min: 10, max: 64}, {type: regex, pattern: 'w[1-3]', weight: 0.5}]";
  std::string data_extra;                      // more lines of `data:`, two spaces indented
  std::string extra;                           // more top-level YAML
  std::string student_world, generator_world;  // more of their `world:`, as ", tp: 2"
};
// Writes the recipe beside its run folder, as write_recipe.
fs::path write_on_policy(const fs::path& folder, const OnPolicyRecipe& recipe);
// Runs it with an adapter that learns fast, so that wrong weights show; the test fails unless it
// ends well. Returns the run's folder. `push`: of the adapter's settings.
fs::path run_adapter(const fs::path& folder, const OnPolicyRecipe& recipe,
                     const std::vector<std::string>& settings,
                     const std::string& push = "push: merged");
// JSONL of prompts; of pairs, the last with an identical completion. Returns the file.
fs::path write_prompts(const TemporaryFolder& folder, int64_t rows = 10);
fs::path write_pairs(const TemporaryFolder& folder);

// All samples of a run (generation.save_samples), by step and sample id; left out are `origin` and
// how often an episode was begun anew.
std::map<std::pair<int64_t, int64_t>, nlohmann::json> read_samples(const fs::path& run);
std::vector<nlohmann::json> read_lines(const fs::path& file);

// The same samples with the same rewards; log-probabilities within 1e-4, being of weights that may
// differ in their last bits, and null at the same tokens, which an environment said.
void expect_same_samples(const fs::path& run, const fs::path& other);
// Every row has the key, and each value differs from the other run's by at most `tolerance`,
// relative to it or absolute below 1.
void expect_same_column(const fs::path& run, const fs::path& other, const std::string& key,
                        double tolerance);

// The process of the run in `folder` with this role's name and rank; waits for it. -1: none within
// `limit`.
int role_process(const fs::path& folder, const std::string& role, int64_t rank = 0,
                 std::chrono::seconds limit = std::chrono::seconds(30));
// Lines of the run's metrics, so far.
size_t metrics_rows(const fs::path& run);
// No process whose command line holds `text` is left, within 20 s.
bool all_gone(const std::string& text);

}  // namespace retort::test
