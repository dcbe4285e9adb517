#include "recipes/grpo/checks.h"

#include "recipes/rules/data.h"
#include "recipes/rules/generation.h"
#include "recipes/rules/references.h"

namespace retort::recipes {
namespace {

// Completions of a step must be whole groups on every rank.
void check_batches(const TrainOptions& train, const GenerationOptions& generation,
                   const GrpoOptions& grpo, const RecipePlaces& places) {
  if (train.tokens_per_batch)
    places.refuse({"train", "tokens_per_batch"},
                  "is not for grpo; use per_device_train_batch_size, the completions of a "
                  "micro-batch");
  if (train.num_train_epochs)
    places.refuse({"train", "num_train_epochs"}, "is not for grpo; use max_steps");
  if (train.batch_size_rampup_steps > 0)
    places.refuse({"train", "batch_size_rampup_steps"},
                  "this recipe's batches are what its generator drew; remove it");

  const int64_t completions =
      train.per_device_train_batch_size.value_or(0) * train.gradient_accumulation_steps;
  const int64_t group = generation.num_generations;
  if (completions % group != 0)
    places.refuse({"train", "per_device_train_batch_size"},
                  "per_device_train_batch_size * gradient_accumulation_steps = " +
                      std::to_string(completions) +
                      " completions must be a multiple of generation.num_generations = " +
                      std::to_string(group));
  if (group < 2 && grpo.advantage != AdvantageType::kReinforcePlusPlus)
    places.refuse({"generation", "num_generations"},
                  "must be at least 2: a sample is compared with the others of its prompt");

  const int64_t steps = grpo.steps_per_rollout();
  const std::string message =
      "must be a multiple of grpo.num_iterations * num_mini_batches = " + std::to_string(steps) +
      ", so that no checkpoint falls inside a round";
  if (train.save_steps % steps != 0) places.refuse({"train", "save_steps"}, message);
  if (train.exit_interval % steps != 0) places.refuse({"train", "exit_interval"}, message);
  // A step that is the best so far is saved; which steps are must be known ahead, as rounds are
  // drawn ahead.
  const bool saves_anyway =
      train.eval_steps == 0 || (train.save_steps > 0 && train.eval_steps % train.save_steps == 0);
  if (train.metric_for_best_model && !saves_anyway)
    places.refuse({"train", "metric_for_best_model"},
                  "needs train.eval_steps to be a multiple of train.save_steps here, so that every "
                  "step that is evaluated has a checkpoint");
}

void check_lengths(const GrpoOptions& grpo, const Recipe& recipe, const RecipePlaces& places) {
  const int64_t longest = recipe.longest_completion();
  if (grpo.overlong_penalty_tokens > longest)
    places.refuse(
        {"grpo", "overlong_penalty_tokens"},
        std::string("must be at most ") +
            (recipe.environment ? "environment.max_tokens" : "generation.max_new_tokens") + " = " +
            std::to_string(longest));
}

// The KL in a reward is made of the probabilities of the draws, over what the loss is made of.
void check_reward_kl(const GrpoOptions& grpo, const GenerationOptions& generation,
                     const RecipePlaces& places) {
  if (!grpo.kl_in_reward) return;
  if (!generation.whole_distribution())
    places.refuse({"grpo", "kl_in_reward"},
                  "compares the probabilities that completions were drawn with to the reference's; "
                  "leave top_p, top_k, min_p, typical_p, min_new_tokens and the penalties alone");
  if (grpo.mask_truncated_completions)
    places.refuse({"grpo", "kl_in_reward"},
                  "is not for mask_truncated_completions: the reference is not asked about "
                  "completions without a loss, whose rewards would stay as they are");
}

void check_staleness(const GrpoOptions& grpo, const WeightSyncOptions& sync,
                     const GenerationOptions& generation, const RecipePlaces& places) {
  const int64_t left = grpo.staleness_left(sync.every_steps);
  const int64_t oldest = grpo.max_staleness - left;
  if (left < 0 && sync.every_steps > 1)
    places.refuse(
        {"weight_sync", "every_steps"},
        "lets weights lie " + std::to_string(oldest) +
            " steps behind, more than grpo.max_staleness = " + std::to_string(grpo.max_staleness));

  // Generation runs ahead by whole rounds, within what the last step on samples that do not run
  // ahead lies behind already. 0 says only that none does.
  const int64_t steps = grpo.steps_per_rollout();
  const bool runs_ahead = left >= steps;
  const int64_t without = sync.every_steps > 1 ? oldest : 0;
  if (!runs_ahead && grpo.max_staleness > without)
    places.refuse({"grpo", "max_staleness"},
                  "does not let generation run ahead, which it does by whole rounds of "
                  "grpo.num_iterations * num_mini_batches steps, up to the last of them: set it "
                  "to " +
                      std::to_string(oldest + steps) + " or more, or to " +
                      std::to_string(without));
  if (!runs_ahead && sync.in_flight != InFlight::kFinish)
    places.refuse({"weight_sync", "in_flight"},
                  "has no effect unless grpo.max_staleness lets generation run ahead, from " +
                      std::to_string(oldest + steps) +
                      " on: nothing is in flight when weights are pushed; remove it");

  if (grpo.ratio_to_generator() && !generation.whole_distribution())
    places.refuse({"grpo", grpo.old_logps == OldPolicy::kGenerator ? "old_logps"
                           : grpo.max_staleness > 0                ? "max_staleness"
                                                                   : "num_mini_batches"},
                  "compares with the probabilities that the samples were drawn with; leave top_p, "
                  "top_k, min_p, typical_p, min_new_tokens and the penalties alone, or set "
                  "sampling_correction or old_logps: trainer");
}

// An old policy that is chosen must be one that the loss would not have by itself, and leave
// something to a correction.
void check_old_policy(const GrpoOptions& grpo, const RecipePlaces& places) {
  const bool corrected = grpo.correction() != losses::SamplingCorrection::kNone;
  if (grpo.old_logps == OldPolicy::kTrainer && grpo.steps_per_rollout() == 1 &&
      grpo.max_staleness == 0)
    places.refuse({"grpo", "old_logps"},
                  "trainer with num_mini_batches: 1 and max_staleness: 0: rho is 1 there; leave it "
                  "out");
  if (grpo.old_logps == OldPolicy::kGenerator && corrected)
    places.refuse({"grpo", "old_logps"},
                  "generator leaves nothing to sampling_correction, whose weights are the old "
                  "policy's probabilities by the generator's: use trainer, or "
                  "sampling_correction: none");
}

// The only step on a rollout has the ratio 1 to the student's own probabilities: nothing is
// clipped, and a sequence's ratio is its tokens'.
void check_ratio(const GrpoOptions& grpo, const RecipePlaces& places) {
  const GrpoOptions defaults;
  if (!grpo.ratio_is_one()) return;

  const bool corrected = grpo.correction() != losses::SamplingCorrection::kNone;
  const bool older = grpo.max_staleness > 0;
  const std::string message =
      std::string("has no effect: with num_iterations: 1 and ") +
      (corrected ? "a sampling_correction"
       : older   ? "old_logps: trainer"
                 : "samples of the student itself") +
      " the ratio of new to old probabilities is 1; remove it, or raise num_iterations" +
      (corrected || older ? " or num_mini_batches" : ", num_mini_batches or max_staleness");
  if (grpo.off_policy_mask_threshold && !corrected)
    places.refuse({"grpo", "off_policy_mask_threshold"}, message);
  if (grpo.loss_type == losses::PolicyLossType::kCispo)
    places.refuse({"grpo", "loss_type"}, message);
  if (grpo.delta) places.refuse({"grpo", "delta"}, message);
  if (grpo.epsilon != defaults.epsilon) places.refuse({"grpo", "epsilon"}, message);
  if (grpo.epsilon_high != defaults.epsilon_high) places.refuse({"grpo", "epsilon_high"}, message);
  if (grpo.importance_sampling_level != defaults.importance_sampling_level)
    places.refuse({"grpo", "importance_sampling_level"}, message);
}

// The first step on a rollout has the old policy from its own forward pass, whose elements are
// dropped; that of later ones would be of the whole adapter.
void check_lora_dropout(const GrpoOptions& grpo, const RoleOptions& student,
                        const RecipePlaces& places) {
  const auto& lora = student.lora;
  if (!lora || lora->lora_dropout == 0) return;
  const bool corrected = grpo.correction() != losses::SamplingCorrection::kNone;
  if (grpo.steps_per_rollout() > 1 || corrected)
    places.refuse({"roles", "student", "lora", "lora_dropout"},
                  std::string("is not for grpo with ") +
                      (corrected                 ? "a sampling_correction"
                       : grpo.num_iterations > 1 ? "num_iterations above 1"
                                                 : "num_mini_batches above 1") +
                      ": what is dropped would be part of the ratios to the old policy; set it to "
                      "0" +
                      (corrected ? ", or sampling_correction: none" : ""));
}

}  // namespace

void check_grpo(const Recipe& recipe, const RecipePlaces& places) {
  const GrpoOptions& grpo = *recipe.grpo;
  const GenerationOptions& generation = *recipe.generation;
  check_batches(recipe.train, generation, grpo, places);
  check_lengths(grpo, recipe, places);
  check_reward_kl(grpo, generation, places);
  check_staleness(grpo, *recipe.weight_sync, generation, places);
  check_samples_differ(generation, places);
  check_old_policy(grpo, places);
  check_ratio(grpo, places);
  check_lora_dropout(grpo, recipe.student(), places);
  check_reference(recipe.roles, places, {"grpo", "reference"}, grpo.reference, grpo.beta > 0,
                  "grpo.beta is 0");
  check_no_packing(recipe.data, places, "completions");
  check_keeps_start(recipe.data, places, "prompts are never cut");
  check_no_target_choice(recipe.data, places, "the completions of the generator");
}

}  // namespace retort::recipes
