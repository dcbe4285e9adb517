#include "tests/recipes/run_support/device_bfloat16.h"

#include <fstream>
#include <ostream>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr int64_t kRows = 20, kPairs = 12, kCompletions = 40;

// The student begins with the exact model, whatever the recipe names.
std::vector<std::string> exact_student(const TemporaryFolder& folder) {
  return {"roles.student.model=" + exact_model(folder, "qwen3").string()};
}

// And trains an adapter, whose second factors are not 0, so that both have a gradient.
std::vector<std::string> exact_student_with_adapter(const TemporaryFolder& folder) {
  return joined(exact_student(folder),
                {"roles.student.lora={r: 4, lora_alpha: 8, target_modules: all-linear, adapter: " +
                 (goldens() / "lora_qwen3").string() + "}"});
}

WriteRun writes(const TemporaryFolder& folder, const GoldenRecipe& recipe) {
  return [&folder, recipe](const std::string& name) { return write_recipe(folder / name, recipe); };
}
WriteRun writes(const TemporaryFolder& folder, const OnPolicyRecipe& recipe) {
  return
      [&folder, recipe](const std::string& name) { return write_on_policy(folder / name, recipe); };
}

WriteRun write_sft(const TemporaryFolder& folder) {
  return writes(folder, GoldenRecipe{.steps = 1});
}

Bfloat16Case distill_case(const std::string& payload) {
  const auto write = [payload](const TemporaryFolder& folder) {
    GoldenRecipe recipe{.teacher = exact_model(folder, "teacher"),
                        .steps = 1,
                        .distill = {{"payload", payload}, {"kd_ratio", "0.7"}}};
    if (payload == "topk") recipe.distill["loss_top_k"] = "8";
    return writes(folder, recipe);
  };
  return {.name = "distill_" + payload,
          .write = write,
          .rows = kRows,
          .roles = {"student", "teacher"},
          .more = exact_student};
}

WriteRun write_dpo(const TemporaryFolder& folder) {
  return writes(folder, OnPolicyRecipe{.recipe = "dpo",
                                       .data = write_pairs(folder),
                                       .reference = exact_model(folder, "teacher"),
                                       .steps = 1,
                                       .block = {{"beta", "0.3"}}});
}

WriteRun write_kto(const TemporaryFolder& folder) {
  return writes(folder, OnPolicyRecipe{.recipe = "kto",
                                       .data = goldens() / "labels.jsonl",
                                       .reference = exact_model(folder, "teacher"),
                                       .steps = 1,
                                       .block = {{"beta", "0.3"}, {"undesirable_weight", "0.8"}}});
}

WriteRun write_grpo(const TemporaryFolder& folder) {
  return writes(folder, OnPolicyRecipe{.data = write_prompts(folder),
                                       .generator_model = exact_model(folder, "qwen3"),
                                       .reference = exact_model(folder, "teacher"),
                                       .steps = 1,
                                       .block = {{"beta", "0.05"}}});
}

// Its head is drawn, and is the same in both runs but for the rounding of its numbers.
WriteRun write_reward_model(const TemporaryFolder& folder) {
  return [&folder](const std::string& name) {
    const fs::path path = folder / name / "recipe.yaml";
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "recipe: reward_model\noutput_dir: " << (folder / name / "run").string()
                        << "\nseed: 3\nroles:\n  student: {model: "
                        << (goldens() / "qwen3").string()
                        << ", world: {threads: 1}}\ndata:\n  train: [{path: "
                        << (goldens() / "reward_pairs.jsonl").string()
                        << "}]\n  max_length: 64\n  shuffle: false\ntrain:\n  max_steps: 1\n"
                        << "  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n"
                        << "  save_steps: 0\nreward_model: {num_labels: 1}\n";
    return path;
  };
}

}  // namespace

std::vector<Bfloat16Case> bfloat16_cases() {
  return {{"sft", write_sft, kRows, {"student"}, exact_student},
          {"sft_lora", write_sft, kRows, {"student"}, exact_student_with_adapter},
          distill_case("hidden_states"),
          distill_case("topk"),
          distill_case("full"),
          {"dpo", write_dpo, kPairs, {"student", "reference"}, exact_student},
          {"kto", write_kto, kRows, {"student", "reference"}, exact_student},
          {"reward_model", write_reward_model, kRows, {"student"}, exact_student},
          {"grpo", write_grpo, kCompletions, {"student", "generator", "reference"}, exact_student}};
}

void PrintTo(const Bfloat16Case& c, std::ostream* out) { *out << c.name; }

void expect_bfloat16_follows_on_device(const Bfloat16Case& c) {
  TemporaryFolder folder;
  Split split{.name = "device", .world = {}, .more = {}};
  for (const std::string& role : c.roles)
    if (role != "generator") split.more.push_back("roles." + role + ".world.device=cuda");
  expect_bfloat16_follows(c.write(folder), c.rows, c.roles, {split}, c.more(folder));
}

}  // namespace retort::test
