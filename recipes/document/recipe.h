// The document: the whole of what `retort launch` is asked to do, composed of the option structs of
// the modules. What reads it from YAML is launch/document; what carries it out is a RecipeType
// (recipes/type/recipe_type.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "recipes/data/options.h"
#include "recipes/document/distill_options.h"
#include "recipes/document/dpo_options.h"
#include "recipes/document/environment_options.h"
#include "recipes/document/generation_options.h"
#include "recipes/document/grpo_options.h"
#include "recipes/document/kto_options.h"
#include "recipes/document/launch_options.h"
#include "recipes/document/rejection_sampling_options.h"
#include "recipes/document/reward_model_options.h"
#include "recipes/document/role_options.h"
#include "recipes/document/sft_options.h"
#include "recipes/document/train_options.h"
#include "recipes/rewards/options.h"
#include "rpc/options.h"

namespace retort::recipes {

// The value of `recipe:`: the name of one of the registered recipe types (recipes/registry.cc).
struct RecipeName {
  std::string text = "sft";

  // The names of all types, in the registry's order, which defines this.
  static std::vector<std::string_view> choices();
};

struct Recipe {
  RecipeName recipe;
  std::string output_dir;
  int64_t seed = 42;
  bool deterministic = false;
  Roles roles;
  data::DataOptions data;
  TrainOptions train;
  std::optional<SftOptions> sft;
  std::optional<DistillOptions> distill;
  std::optional<DpoOptions> dpo;
  std::optional<KtoOptions> kto;
  std::optional<RewardModelOptions> reward_model;
  std::optional<GenerationOptions> generation;
  std::optional<EnvironmentOptions> environment;
  std::vector<rewards::RewardOptions> rewards;
  std::optional<RejectionSamplingOptions> rejection_sampling;
  std::optional<GrpoOptions> grpo;
  std::optional<WeightSyncOptions> weight_sync;
  LaunchOptions launch;
  rpc::RpcOptions rpc;

  template <class V>
  void fields(V& visit) {
    visit("recipe", recipe, "what is done");
    visit("output_dir", output_dir, "the run's folder");
    visit("seed", seed, "of the data order and of everything random");
    visit("deterministic", deterministic,
          "deterministic algorithms of LibTorch, cuBLAS and NCCL on devices; an operator that has "
          "none is an error (a CPU's results repeat anyway)");
    visit("roles", roles, "name -> role; `student` drives the run");
    visit("data", data, "training and evaluation data");
    visit("train", train, "length, batch, optimizer, and what happens when");
    visit("sft", sft, "recipe: sft");
    visit("distill", distill, "recipe: distill and on_policy_distill");
    visit("dpo", dpo, "recipe: dpo");
    visit("kto", kto, "recipe: kto");
    visit("reward_model", reward_model, "recipe: reward_model");
    visit("generation", generation,
          "how samples are drawn; recipe: rejection_sampling, on_policy_distill, grpo, and distill "
          "with lmbda");
    visit(
        "environment", environment,
        "samples are episodes: a role answers the student's turns, by tools or as a user; recipe: "
        "grpo, rejection_sampling and on_policy_distill");
    visit("rewards", rewards, "what samples are scored by; recipe: rejection_sampling and grpo");
    visit("rejection_sampling", rejection_sampling, "recipe: rejection_sampling");
    visit("grpo", grpo, "recipe: grpo");
    visit("weight_sync", weight_sync, "how generators follow the student; with generation");
    visit("launch", launch, "how processes are started and stopped");
    visit("rpc", rpc, "the connections between roles");
  }

  // The role whose processes run the recipe.
  static constexpr const char* kDrivingRole = "student";
  const RoleOptions& student() const { return roles.at(kDrivingRole); }
  bool is_generator(const std::string& role) const {
    return generation && generation->role == role;
  }
  bool is_environment(const std::string& role) const {
    return environment && environment->role == role;
  }
  // Tokens that a sample has behind its prompt, at most; a recipe with `generation`.
  int64_t longest_completion() const;
  int64_t num_processes() const;
};

// Roles that score completions, each once, in the order of `rewards`.
std::vector<std::string> reward_roles(const Recipe& recipe);
// True if rewards ask the role in words, which needs no tokenizer like the student's.
bool is_judge(const Recipe& recipe, const std::string& role);
// True if the block of this name holds anything.
bool has_block(const Recipe& recipe, std::string_view name);

}  // namespace retort::recipes
