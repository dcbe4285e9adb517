// Rows of the keys of `grpo:` and `rejection_sampling:`.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

const char* const kGoldenRuns = "tests/recipes/runs/policy_run_test.cc";

std::vector<KeyRow> ratio_rows() {
  const std::string twice = "grpo.num_iterations=2";
  const std::string is_one = "the ratio of new to old probabilities is 1";
  return {
      acts(kGrpoBase, "grpo.loss_type=grpo", policy),
      acts(kGrpoBase, "grpo.epsilon=0.1", policy, {twice}),
      acts(kGrpoBase, "grpo.epsilon_high=0.4", policy, {twice}),
      acts(kGrpoBase, "grpo.importance_sampling_level=sequence", policy, {twice}),
      acts(kGrpoBase, "grpo.delta=1.3", policy, {twice}),
      acts(kGrpoBase, "grpo.loss_type=cispo", policy, {twice, "grpo.epsilon_high=1.2"}),
      refused(kGrpoBase, "grpo.delta=1.1", "must be finite and above 1 + epsilon_high", {twice}),
      refused(kGrpoBase, "grpo.delta=1.3", is_one),
      acts(kGrpoBase, "grpo.off_policy_mask_threshold=0.00001", policy, {twice}),
      refused(kGrpoBase, "grpo.off_policy_mask_threshold=0", "must be positive and finite",
              {twice}),
      refused(kGrpoBase, "grpo.off_policy_mask_threshold=0.1", is_one),
      refused(kGrpoBase, "grpo.loss_type=cispo", "must be given with loss_type: cispo", {twice}),
      // once dead, all three
      refused(kGrpoBase, "grpo.epsilon=0.1", is_one),
      refused(kGrpoBase, "grpo.epsilon_high=0.4", is_one),
      refused(kGrpoBase, "grpo.importance_sampling_level=sequence", is_one),

      acts(kGrpoBase, "grpo.sampling_correction=token_truncate", policy),
      acts(kGrpoBase, "grpo.importance_sampling_cap=1.5", policy,
           {"grpo.sampling_correction=token_truncate"}),
      refused(kGrpoBase, "grpo.importance_sampling_cap=1.5", "without a sampling_correction"),
      acts(kGrpoBase, "grpo.importance_sampling_floor=0.99", policy,
           {"grpo.sampling_correction=token_mask"}),
      refused(kGrpoBase, "grpo.importance_sampling_floor=0.5", "without a sampling_correction"),
      refused(kGrpoBase, "grpo.importance_sampling_floor=3.5", "below importance_sampling_cap",
              {"grpo.sampling_correction=token_mask"}),

      in_run("grpo.old_logps", "tests/recipes/objectives/grpo_options_test.cc",
             ".old_logps = OldPolicy::kTrainer"),
      refused(kGrpoBase, "grpo.old_logps=trainer",
              "trainer with num_mini_batches: 1 and max_staleness: 0: rho is 1 there"),
      refused(kGrpoBase, "grpo.old_logps=generator", "leaves nothing to sampling_correction",
              {"grpo.sampling_correction=token_mask"}),
      refused(kGrpoBase, "grpo.old_logps=generator", "leave top_p, top_k, min_p",
              {"generation.top_p=0.9"}),
      // a ratio that a correction once left without effect
      acts(kGrpoBase, "grpo.epsilon_high=0.4", policy,
           {"grpo.num_mini_batches=2", "grpo.sampling_correction=token_truncate"}),
      refused(kGrpoBase, "grpo.epsilon_high=0.4", is_one,
              {"grpo.max_staleness=1", "grpo.sampling_correction=token_truncate"}),
  };
}

std::vector<KeyRow> grpo_rows() {
  const std::vector<std::string> with_reference{"roles.reference={model: FOLDER/student}",
                                                "grpo.beta=0.1"};
  return {
      refused(kSftBase, "grpo={}", "this block belongs to recipe: grpo"),
      acts(kGrpoBase, "grpo.beta=0.2", policy, with_reference),
      refused(kGrpoBase, "grpo.reference=other", "'other' is not declared", with_reference),
      // once dead
      refused(kGrpoBase, "grpo.reference=other", "has no effect: grpo.beta is 0"),

      acts(kGrpoBase, "grpo.use_bias_correction_kl=false", policy, with_reference),
      refused(kGrpoBase, "grpo.use_bias_correction_kl=false", "no effect without a KL in the loss"),
      refused(kGrpoBase, "grpo.use_bias_correction_kl=false", "no effect without a KL in the loss",
              {with_reference[0], with_reference[1], "grpo.kl_in_reward=true"}),

      acts(kGrpoBase, "grpo.kl_in_reward=true", policy, with_reference),
      refused(kGrpoBase, "grpo.kl_in_reward=true", "has no effect with beta: 0"),
      refused(kGrpoBase, "grpo.kl_in_reward=true", "leave top_p, top_k, min_p",
              {with_reference[0], with_reference[1], "generation.top_p=0.9"}),
      refused(kGrpoBase, "grpo.kl_in_reward=true", "is not for mask_truncated_completions",
              {with_reference[0], with_reference[1], "grpo.mask_truncated_completions=true"}),
      in_run("grpo.entropy_coef", kOnPolicyRuns, R"("entropy_coef")"),
      refused(kGrpoBase, "grpo.entropy_coef=-1", "must be finite and not negative"),
      in_run("grpo.top_entropy_quantile", "tests/recipes/objectives/grpo_options_test.cc",
             "options.top_entropy_quantile = 1 -"),
      refused(kGrpoBase, "grpo.top_entropy_quantile=1.5", "must be in [0, 1]"),
      in_run("grpo.mask_truncated_completions", kOnPolicyRuns, R"("mask_truncated_completions")"),
      in_run("grpo.overlong_penalty_tokens", kOnPolicyRuns, R"("overlong_penalty_tokens")"),
      refused(kGrpoBase, "grpo.overlong_penalty_tokens=100000",
              "must be at most generation.max_new_tokens"),
      in_run("grpo.max_resamples", kOnPolicyRuns, R"("max_resamples")"),
      refused(kGrpoBase, "grpo.max_resamples=1",
              "has no effect with advantage: reinforce_plus_plus",
              {"grpo.advantage=reinforce_plus_plus"}),

      in_run("grpo.advantage", kGoldenRuns, R"("rloo")"),
      in_run("grpo.multi_objective_aggregation", "tests/recipes/objectives/grpo_options_test.cc",
             "MultiObjectiveAggregation::kNormalizeThenSum"),
      refused(kGrpoBase, "grpo.multi_objective_aggregation=normalize_then_sum",
              "has no effect without advantage: grpo", {"grpo.advantage=rloo"}),
      refused(kGrpoBase, "grpo.multi_objective_aggregation=normalize_then_sum",
              "scale_rewards has no effect", {"grpo.scale_rewards=batch"}),
      refused(kGrpoBase, "grpo.multi_objective_aggregation=normalize_then_sum",
              "kl_in_reward takes from a sum",
              {with_reference[0], with_reference[1], "grpo.kl_in_reward=true"}),
      in_run("grpo.scale_rewards", kGoldenRuns, R"("batch_scale")"),
      refused(kGrpoBase, "grpo.scale_rewards=none", "has no effect without advantage: grpo",
              {"grpo.advantage=rloo"}),

      in_run("grpo.num_mini_batches", kOnPolicyRuns, R"(block["num_mini_batches"] = "2")"),
      refused(kGrpoBase, "grpo.num_mini_batches=2", "leave top_p, top_k, min_p",
              {"generation.top_p=0.9"}),
      in_run("grpo.num_iterations", kOnPolicyRuns, R"(block["num_iterations"] = "2")"),
      in_run("grpo.max_staleness", kOnPolicyRuns, R"(column(first[1], "staleness"))"),
      // once dead: no whole round fits into it
      refused(kGrpoBase, "grpo.max_staleness=1", "does not let generation run ahead",
              {"grpo.num_iterations=2"}),
  };
}

std::vector<KeyRow> rejection_rows() {
  const std::string block = "rejection_sampling.";
  const std::string best = block + "select=top_fraction";
  return {
      refused(kSftBase, "rejection_sampling={}", "this block belongs to recipe: rejection"),
      in_run("rejection_sampling.rounds", kOnPolicyRuns, "kept/round-1.jsonl"),
      refused(kRejectionBase, block + "rounds=3", "must be a multiple of"),
      in_run("rejection_sampling.prompts_per_round", kOnPolicyRuns,
             R"({"prompts_per_round", "7"})"),
      acts(kRejectionBase, block + "select=threshold", kept, {block + "threshold=0.5"}),
      acts(kRejectionBase, block + "top_n=2", kept),
      refused(kRejectionBase, block + "top_n=2", "has no effect without select: best_of_n",
              {block + "threshold=0.5", block + "select=threshold"}),
      acts(kRejectionBase, block + "threshold=0.5", kept),
      acts(kRejectionBase, block + "top_fraction=0.75", kept, {block + "top_fraction=0.25", best}),
      refused(kRejectionBase, block + "top_fraction=0.75", "has no effect without select"),
      acts(kRejectionBase, block + "deduplicate=false", kept, {block + "top_n=2"}),
      acts(kRejectionBase, block + "keep_truncated=false", kept),
      // once dead
      refused(kRejectionBase, block + "deduplicate=false", "a prompt has one completion",
              {"generation.num_generations=1"}),
  };
}

}  // namespace

std::vector<KeyRow> policy_rows() {
  std::vector<KeyRow> all;
  for (const auto& part : {ratio_rows, grpo_rows, rejection_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test
