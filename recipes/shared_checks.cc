#include "recipes/shared_checks.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "models/generation/stop_text.h"
#include "recipes/data/options.h"
#include "recipes/roles/serving_roles.h"

namespace retort::recipes {
namespace {

// What every block calls its reference unless told otherwise.
constexpr const char* kUsualReference = "reference";

// A model of ours that scores completions, or is asked about them in words.
void check_own_reward_role(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                           const std::string& role) {
  const bool judges = is_judge(recipe, role);
  const RoleOptions& options = recipe.roles.at(role);
  for (const rewards::RewardOptions& reward : recipe.rewards)
    if (judges && reward.role == role && reward.type == rewards::RewardType::kModel)
      places.refuse(path, "'" + role +
                              "' is asked in words by one reward and for a number by another; a "
                              "model does one of the two: give each a role of its own");

  const auto refuse_world = [&](const char* key, const std::string& why) {
    places.refuse({"roles", role, "world", key}, why);
  };
  if (options.world.pp > 1)
    refuse_world("pp",
                 "a role that scores completions has no pipeline stages; use dp for replicas" +
                     std::string(judges ? "" : ", or tp"));
  if (judges && options.world.tp > 1)
    refuse_world("tp", "a judge of ours is one process a replica in this version; use dp for more");
  if (options.world.sequence_parallel)
    refuse_world("sequence_parallel",
                 "has no effect on a role that scores completions, which keeps no activations");
  if (options.batching != Batching::kAsSent)
    places.refuse({"roles", role, "batching"},
                  "is for teachers and references; what scores completions gives the same bits "
                  "whatever waits beside them");
}

}  // namespace

void check_reward_roles(const Recipe& recipe, const RecipePlaces& places) {
  const auto frozen = frozen_roles(recipe);
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    if (!recipe.rewards[i].role) continue;
    const std::string& role = *recipe.rewards[i].role;
    const KeyPath path{"rewards", std::to_string(i), "role"};
    check_declared(recipe, places, path, role);
    if (role == Recipe::kDrivingRole)
      places.refuse(path, "the student trains here; a reward needs a role of its own");
    if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
      places.refuse(path, "'" + role +
                              "' is asked for log-probabilities elsewhere in this recipe; give "
                              "the reward a role of its own (it may have the same url)");
    if (!recipe.is_generator(role) && !recipe.roles.at(role).external)
      check_own_reward_role(recipe, places, path, role);
  }
}

std::string nearest_role(const Recipe& recipe, const std::string& word) {
  std::vector<std::string_view> names;
  for (const auto& [name, role] : recipe.roles)
    if (name != word) names.push_back(name);
  const std::string nearest = nearest_name(word, names);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

void check_declared(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                    const std::string& role) {
  if (!recipe.roles.contains(role))
    places.refuse(path, "'" + role + "' is not declared under roles" + nearest_role(recipe, role));
}

void check_reference(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                     const std::string& role, bool needed, const std::string& why_not) {
  // The default may be written out, as in every saved recipe, even where a role of another use has
  // that name. A role that nothing uses is refused as such.
  if (!needed) {
    if (role != kUsualReference)
      places.refuse(path, "has no effect: " + why_not + "; remove the key");
    return;
  }
  if (is_own_reference(recipe, role)) return;
  if (role == Recipe::kDrivingRole)
    places.refuse(path,
                  "the student cannot be its own reference: it moves; with roles.student.lora it "
                  "can, as it was before its training");
  check_declared(recipe, places, path, role);
}

bool is_own_reference(const Recipe& recipe, const std::string& role) {
  return role == Recipe::kDrivingRole && recipe.roles.contains(role) &&
         recipe.student().lora.has_value();
}

std::vector<std::string> reference_roles(const Recipe& recipe, const std::string& role) {
  if (is_own_reference(recipe, role)) return {};
  return {role};
}

void check_own_reference(const Recipe& recipe, const RecipePlaces& places, const std::string& block,
                         const std::string& role, const std::string& cache, int64_t prefetch,
                         int64_t usual_prefetch) {
  if (!is_own_reference(recipe, role)) return;
  const std::string why =
      "has no effect: what the student was before its training is asked when its batch is drawn, "
      "and no "
      "answer is kept; remove the key";
  if (!cache.empty()) places.refuse({block, "reference_cache"}, why);
  if (prefetch != usual_prefetch) places.refuse({block, "prefetch"}, why);
}

void check_pair_batches(const Recipe& recipe, const RecipePlaces& places) {
  const int64_t longest = 2 * recipe.data.max_length;
  if (recipe.train.tokens_per_batch && *recipe.train.tokens_per_batch < longest)
    places.refuse({"train", "tokens_per_batch"},
                  "must be at least twice data.max_length (2 * " +
                      std::to_string(recipe.data.max_length) +
                      "), as both completions of a pair count; raise it, or lower "
                      "data.max_length");
  if (recipe.train.batch_size_rampup_steps > 0 && recipe.train.tokens_per_batch)
    places.refuse({"train", "batch_size_rampup_steps"},
                  "batches of pairs by tokens are formed before their step is known; use "
                  "per_device_train_batch_size");
}

void check_no_packing(const Recipe& recipe, const RecipePlaces& places, const std::string& what) {
  if (!recipe.data.packing)
    places.refuse(
        {"data", "packing"},
        "has no effect: " + what + " are always laid end to end, without padding; remove the key");
  const std::string whole = what + ", which are never cut in two";
  check_no_wrapping(recipe, places, whole);
  check_no_tokenized_cache(recipe, places, whole);
}

void check_no_skipped_steps(const Recipe& recipe, const RecipePlaces& places,
                            const std::string& what) {
  if (recipe.train.skip_nonfinite_steps > 0)
    places.refuse({"train", "skip_nonfinite_steps"},
                  "is not for this loss, which is formed of " + what +
                      ", before a step is known to be finite; remove the key");
}

void check_keeps_start(const Recipe& recipe, const RecipePlaces& places, const std::string& why) {
  if (recipe.data.truncation_mode == data::TruncationMode::kKeepEnd)
    places.refuse({"data", "truncation_mode"},
                  "keep_end is for sft, distill and dpo; here " + why + "; remove the key");
}

void check_no_wrapping(const Recipe& recipe, const RecipePlaces& places, const std::string& what) {
  if (recipe.data.packing_strategy != data::PackingStrategy::kWhole)
    places.refuse({"data", "packing_strategy"},
                  "wrapped is for rows that can go on in the next pack; this recipe has " + what +
                      "; remove the key");
}

void check_no_tokenized_cache(const Recipe& recipe, const RecipePlaces& places,
                              const std::string& what) {
  if (recipe.data.tokenized_cache)
    places.refuse(
        {"data", "tokenized_cache"},
        "holds the tokens of samples that are trained on as they stand; this recipe has " + what +
            ", which are tokenised as they are read; remove the key");
}

void check_no_target_choice(const Recipe& recipe, const RecipePlaces& places,
                            const std::string& what) {
  const data::DataOptions defaults;
  const std::string message = "has no effect: this recipe trains on " + what + "; remove the key";
  if (recipe.data.completion_only_loss != defaults.completion_only_loss)
    places.refuse({"data", "completion_only_loss"}, message);
  if (recipe.data.assistant_only_loss != defaults.assistant_only_loss)
    places.refuse({"data", "assistant_only_loss"}, message);
}

namespace {

// Without a tokenizer beside it the student's model is refused elsewhere.
void check_stop(const Recipe& recipe, const RecipePlaces& places) {
  const std::filesystem::path folder = recipe.student().model;
  if (recipe.generation->stop.empty() || !std::filesystem::exists(folder / "tokenizer.json"))
    return;
  try {
    models::stop_rule(models::Tokenizer::load(folder), recipe.generation->stop);
  } catch (const Error& error) {
    places.refuse({"generation", "stop"}, error.message(), error.code());
  }
}

}  // namespace

void check_generation(const Recipe& recipe, const RecipePlaces& places) {
  const std::string& role = recipe.generation->role;
  const KeyPath path{"generation", "role"};
  if (role == Recipe::kDrivingRole)
    places.refuse(path,
                  "the student trains and cannot generate at once; give the generator a role of "
                  "its own");
  check_declared(recipe, places, path, role);
  auto frozen = frozen_roles(recipe);
  for (std::string& scores : reward_roles(recipe))
    frozen.push_back(std::move(scores));
  if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
    places.refuse(path,
                  "'" + role +
                      "' is frozen elsewhere in this recipe and cannot take over the student's "
                      "weights");

  if (recipe.roles.at(role).dtype != recipe.student().dtype)
    places.refuse(
        {"roles", role, "dtype"},
        "the generator takes over the student's weights and must have the student's dtype");
  if (recipe.generation->max_new_tokens >= recipe.data.max_length)
    places.refuse({"generation", "max_new_tokens"},
                  "leaves no room for a prompt in data.max_length = " +
                      std::to_string(recipe.data.max_length));

  if (recipe.weight_sync && recipe.weight_sync->bucket_bytes > recipe.rpc.max_message_bytes)
    places.refuse({"weight_sync", "bucket_bytes"},
                  "is above rpc.max_message_bytes, the largest message that is accepted");
  check_stop(recipe, places);
  if (recipe.generation->eval_num_generations == 1) return;
  if (!recipe.grpo && !recipe.rejection_sampling)
    places.refuse({"generation", "eval_num_generations"},
                  "has no effect: nothing is drawn to evaluate this recipe");
  if (recipe.data.eval.empty())
    places.refuse({"generation", "eval_num_generations"}, "has no effect without data.eval");
}

void check_draws_with_student_of_now(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.weight_sync->every_steps != 1)
    places.refuse({"weight_sync", "every_steps"},
                  "is for grpo; this recipe always draws with the student of now");
  if (recipe.weight_sync->in_flight != InFlight::kFinish)
    places.refuse({"weight_sync", "in_flight"},
                  "has no effect: nothing is in flight when this recipe pushes weights; remove it");
}

void check_samples_differ(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.generation->sampling.temperature == 0)
    places.refuse({"generation", "temperature"}, "must be above 0: greedy samples are all equal");
}

}  // namespace retort::recipes
