// Preference training of an adapter with modules that are trained whole (modules_to_save).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// `reference: student` has the modules back as the base model has them, not only the factors away:
// what a role with the base model answers.
TEST(SavedModules, AreNotTheReferences) {
  TemporaryFolder folder;
  const std::string recipe = golden_cases("lora").at("dpo_llama").at("recipe");
  const auto run = [&](const std::string& name, const std::string& modules,
                       std::vector<std::string> settings) {
    settings.push_back("roles.student.lora={r: 2, lora_alpha: 3, target_modules: [q_proj]" +
                       modules + "}");
    fs::create_directories(folder / name);
    return run_recipe_text(folder / name, recipe, settings);
  };
  const std::string saved = ", modules_to_save: [embed_tokens, norm, lm_head]";
  const fs::path own = run("own", saved, {});
  const fs::path role =
      run("role", saved,
          {"dpo.reference=reference",
           "roles.reference={model: " + (goldens() / "llama").string() + ", world: {threads: 1}}"});
  const fs::path factors = run("factors", "", {});
  ASSERT_FALSE(HasFailure());

  for (const char* key : {"loss", "grad_norm", "rewards/margins", "rewards/chosen"})
    expect_same_column(own, role, key, 1e-5);
  EXPECT_NEAR(column(own, "loss").front(), std::log(2.0), 1e-6);
  // They are trained: without them the gradient is another one, and the model hardly moves.
  EXPECT_GT(column(own, "grad_norm").front(), 2 * column(factors, "grad_norm").front());
  EXPECT_GT(std::abs(column(own, "rewards/margins").back()), 1e-3);
}

}  // namespace
}  // namespace retort::test
