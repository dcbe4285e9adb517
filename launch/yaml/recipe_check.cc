#include "launch/yaml/recipe_check.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "launch/backends/child_process.h"
#include "launch/backends/placement.h"
#include "launch/yaml/device_check.h"
#include "launch/yaml/effect_check.h"
#include "models/config.h"
#include "models/lora/lora_config.h"
#include "models/model_folder.h"
#include "models/placement.h"
#include "recipes/data/source_files.h"
#include "recipes/external_roles.h"
#include "recipes/registry.h"
#include "recipes/rewards/reward.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rollout/drawn_length.h"
#include "recipes/rules/external_roles.h"
#include "recipes/rules/lora.h"
#include "recipes/shared_checks.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

using recipes::KeyPath;

// The keys above all blocks, and which blocks must and must not be there.
class TopLevelCheck {
 public:
  TopLevelCheck(const recipes::Recipe& recipe, const recipes::RecipePlaces& places)
      : recipe_(recipe), places_(places), type_(recipes::recipe_type(recipe)) {}

  void run() const {
    if (recipe_.output_dir.empty())
      places_.refuse({},
                     "`output_dir` is missing; expected the folder of the run, e.g. output_dir: "
                     "runs/first");
    for (const std::string& block : owned_blocks())
      check_block(block);
    check_generation_block();
  }

 private:
  // All blocks that belong to some types only, each once.
  static std::vector<std::string> owned_blocks() {
    std::vector<std::string> names;
    for (const recipes::RecipeType* type : recipes::recipe_types())
      for (const recipes::BlockUse& block : type->blocks())
        if (std::find(names.begin(), names.end(), block.name) == names.end())
          names.emplace_back(block.name);
    return names;
  }

  static std::optional<recipes::BlockUse> use_of(const recipes::RecipeType& type,
                                                 const std::string& block) {
    for (const recipes::BlockUse& use : type.blocks())
      if (use.name == block) return use;
    return std::nullopt;
  }

  // A block must stand exactly where its type is.
  void check_block(const std::string& name) const {
    const bool given = recipes::has_block(recipe_, name);
    const std::string kind(type_.name());
    const std::optional<recipes::BlockUse> use = use_of(type_, name);
    if (!given && use && use->required)
      places_.refuse({}, "`" + name + "` is missing; recipe: " + kind + " needs at least " +
                             std::string(use->least));
    if (!given || use) return;

    std::string owners;
    for (const recipes::RecipeType* type : recipes::recipe_types())
      if (use_of(*type, name)) owners += (owners.empty() ? "" : " or ") + std::string(type->name());
    places_.refuse({name}, "this block belongs to recipe: " + owners + ", the recipe is " + kind);
  }

  void check_generation_block() const {
    const bool generates = type_.generates(recipe_);
    if (recipe_.generation && !generates)
      places_.refuse({"generation"}, type_.no_generation(recipe_));
    if (!recipe_.generation && generates)
      places_.refuse({},
                     "`generation` is missing; this recipe draws samples and needs at least "
                     "generation: {role: generator}");
    if (recipe_.weight_sync && !generates)
      places_.refuse({"weight_sync"}, "has no effect without a generator; remove the block");
  }

  const recipes::Recipe& recipe_;
  const recipes::RecipePlaces& places_;
  const recipes::RecipeType& type_;
};

// Every role by itself, and whether anything uses it.
class RoleCheck {
 public:
  RoleCheck(const recipes::Recipe& recipe, const recipes::RecipePlaces& places,
            const LoadOptions& options)
      : recipe_(recipe), places_(places), options_(options) {}

  void run() const { check_roles(); }

 private:
  void check_roles() const {
    if (!recipe_.roles.contains(recipes::Recipe::kDrivingRole))
      places_.refuse({"roles"},
                     "`student` is missing; every recipe is driven by a role of that name" +
                         recipes::nearest_role(recipe_, recipes::Recipe::kDrivingRole));
    for (const auto& [name, role] : recipe_.roles) {
      if (name.empty() || name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
                              std::string::npos)
        places_.refuse({"roles", name}, "a role's name may hold letters, digits, _ and - only");
      check_role(name, role);
    }
  }

  void check_role(const std::string& name, const recipes::RoleOptions& role) const {
    const bool driving = name == recipes::Recipe::kDrivingRole;
    if (role.model.empty() && !role.external)
      places_.refuse({"roles", name}, "`model` is missing; expected a Hugging Face model folder");
    check_world(name, role.world, driving);
    if (role.world.device == parallel::Device::kCuda && !options_.cuda)
      places_.refuse(
          {"roles", name, "world", "device"},
          "this build has no CUDA module (libretort_cuda.so beside the program); make it with "
          "./dev build --cuda, or use "
          "device: cpu",
          ErrorCode::kUnavailable);
    check_env(name, role);
    check_batching(name, role);
    if (role.restarts < 0) places_.refuse({"roles", name, "restarts"}, "must not be negative");
    if (driving && role.restarts != recipes::RoleOptions{}.restarts)
      places_.refuse({"roles", name, "restarts"},
                     "is for roles that serve; " + name + " resumes with --resume");
    if (driving) return;
    // Where a key names a role that is not declared, that line is the one to mend, and the type's
    // own checks refuse it.
    const auto used = recipes::serving_roles(recipe_);
    const bool all_declared = std::ranges::all_of(
        used, [&](const std::string& each) { return recipe_.roles.contains(each); });
    if (all_declared && std::find(used.begin(), used.end(), name) == used.end())
      places_.refuse({"roles", name}, "no part of this recipe uses the role; remove it" +
                                          recipes::nearest_role(recipe_, name));
  }

  void check_env(const std::string& name, const recipes::RoleOptions& role) const {
    for (const auto& [variable, value] : role.env) {
      const std::vector<std::string> place{"roles", name, "env", variable};
      if (variable.empty() ||
          variable.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos)
        places_.refuse(place,
                       "the name of an environment variable has capital letters, digits and _");
      if (is_launchers_variable(variable))
        places_.refuse(place, "the launcher sets this variable itself; threads are roles." + name +
                                  ".world.threads");
      const bool of_devices = variable.starts_with("NCCL_") ||
                              variable.starts_with("TORCH_NCCL_") || variable.starts_with("CUDA_");
      if (of_devices && role.world.device != parallel::Device::kCuda)
        places_.refuse(place,
                       "has no effect with world.device: cpu; remove it, or use device: cuda");
    }
  }

  void check_world(const std::string& name, const parallel::Layout& world, bool driving) const {
    const auto place = [&](const char* field) {
      return std::vector<std::string>{"roles", name, "world", field};
    };
    const std::string serves = "is for the role that trains; " + name + " serves";
    if (!driving && world.distributed_optimizer)
      places_.refuse(place("distributed_optimizer"), serves);
    if (!driving && world.virtual_pp > 1) places_.refuse(place("virtual_pp"), serves);
    if (recipe_.is_generator(name) && world.pp > 1)
      places_.refuse(
          place("pp"),
          "a generator is not split over pipeline stages: each token would wait for all of "
          "them; use tp and dp");
    if (recipe_.is_generator(name) && world.sequence_parallel)
      places_.refuse(place("sequence_parallel"),
                     "has no effect on a generator, which keeps no activations");
  }

  void check_batching(const std::string& name, const recipes::RoleOptions& role) const {
    if (role.batching == recipes::Batching::kAsSent) return;
    if (role.external)
      places_.refuse({"roles", name, "batching"}, "an external engine batches as it likes");
    if (name == recipes::Recipe::kDrivingRole)
      places_.refuse({"roles", name, "batching"},
                     "has no effect on the driving role, which serves no requests");
    if (recipe_.is_generator(name))
      places_.refuse({"roles", name, "batching"},
                     "is for teachers and references; a generator always computes the sequences "
                     "of a request together");
  }

  const recipes::Recipe& recipe_;
  const recipes::RecipePlaces& places_;
  const LoadOptions& options_;
};

// Of the rate that holds where none is written.
void check_least_rate(const recipes::Recipe& recipe, const recipes::RecipePlaces& places) {
  const recipes::TrainOptions& train = recipe.train;
  if (train.min_lr <= train.learning_rate.value()) return;
  std::ostringstream rate;
  rate << *train.learning_rate;
  places.refuse({"train", "min_lr"}, "must not be above learning_rate, which is " + rate.str() +
                                         " for this recipe where the key is left out; write both");
}

void check_ports(const recipes::Recipe& recipe, const recipes::RecipePlaces& places,
                 bool is_launched) {
  constexpr int64_t kFewest = 16;
  if (recipe.rpc.max_inflight_calls < kFewest)
    places.refuse({"rpc", "max_inflight_calls"},
                  "too few: requests that wait for weights must leave room for those that bring "
                  "them; at least " +
                      std::to_string(kFewest));

  // Each process listens at a port of its own on its host. A role alone has no peers.
  const std::optional<int64_t> ports = recipe.rpc.num_ports();
  const auto on_fullest_host = [&]() -> int64_t {
    switch (recipe.launch.backend) {
      case recipes::Backend::kLocal:
      case recipes::Backend::kSlurm: return recipe.num_processes();
      case recipes::Backend::kSsh: return std::ranges::max(place_processes(recipe).processes);
      case recipes::Backend::kKubernetes: return 1;  // a pod
    }
    return 0;
  };
  const int64_t processes = on_fullest_host();
  if (is_launched && recipe.roles.size() > 1 && ports && *ports < processes)
    places.refuse({"rpc", "port"}, "is enough for " + std::to_string(*ports) + " of the " +
                                       std::to_string(processes) +
                                       " processes of a host, each of which listens at a port "
                                       "of its own; write a range of at least " +
                                       std::to_string(processes) + ", or 0: any that is free");
}

void check_data(const recipes::Recipe& recipe, const recipes::RecipePlaces& places) {
  const auto& data = recipe.data;
  const auto& train = recipe.train;
  if (data.train.empty())
    places.refuse({"data", "train"}, "no training data; expected train: [{path: train.jsonl}]");
  if (train.tokens_per_batch && *train.tokens_per_batch < data.max_length)
    places.refuse({"train", "tokens_per_batch"},
                  "smaller than one row of data.max_length = " + std::to_string(data.max_length));
}

// Models and data must be there, and a model must fit its role's layout.
class FileCheck {
 public:
  FileCheck(const recipes::Recipe& recipe, const recipes::RecipePlaces& places)
      : recipe_(recipe), places_(places) {}

  void run() const {
    check_files();
    recipes::check_lora_files(recipe_, places_);
    check_templates();
  }

 private:
  void check_templates() const {
    for (size_t i = 0; i < recipe_.rewards.size(); ++i) {
      const auto& file = recipe_.rewards[i].template_file;
      try {
        if (file) rewards::judge_template(*file);
      } catch (const Error& error) {
        places_.refuse({"rewards", std::to_string(i), "template"}, error.message());
      }
    }
  }

  void check_files() const {
    for (const auto& [name, role] : recipe_.roles) {
      if (recipes::is_asked_in_words(recipe_, name)) continue;
      std::vector<std::string> path{"roles", name, "model"};
      if (role.external) path = {"roles", name, "external", "tokenizer"};
      if (!fs::is_directory(role.model))
        places_.refuse(path, "'" + role.model +
                                 "' is not a folder; expected a Hugging Face model folder" +
                                 models::model_folder_hint(role.model));
      if (models::is_adapter_folder(role.model))
        places_.refuse(path, "'" + role.model +
                                 "' is a LoRA adapter; expected a whole model: merge it with "
                                 "`retort model merge`" +
                                 (name == recipes::Recipe::kDrivingRole
                                      ? ", or go on with it by roles.student.lora.adapter"
                                      : ""));
      if (!fs::is_regular_file(fs::path(role.model) / "config.json"))
        places_.refuse(path, "'" + role.model +
                                 "' has no config.json; expected a Hugging Face model folder" +
                                 models::model_folder_hint(role.model));
      check_classifier(name, role);
      if (role.world.tp * role.world.pp == 1) continue;
      const models::ModelConfig config = models::read_model_config(role.model);
      try {
        models::check_layout(role.world, config);
      } catch (const Error& error) {
        places_.refuse({"roles", name, "world"}, error.message());
      }
    }
    check_sources("train", recipe_.data.train);
    check_sources("eval", recipe_.data.eval);
  }

  // A role of ours that scores needs a model that does, with the labels that are asked for.
  void check_classifier(const std::string& name, const recipes::RoleOptions& role) const {
    if (role.external) return;
    for (size_t i = 0; i < recipe_.rewards.size(); ++i) {
      const rewards::RewardOptions& reward = recipe_.rewards[i];
      if (reward.role != name || reward.type != rewards::RewardType::kModel) continue;
      const models::ModelConfig config = models::read_model_config(role.model);
      if (!config.classifies())
        places_.refuse({"roles", name, "model"},
                       "'" + role.model +
                           "' is a language model, which scores nothing; expected a sequence "
                           "classifier, as recipe: reward_model saves, or an engine that scores "
                           "(`external`)");
      if (reward.label.value_or(0) >= config.classifier.num_labels)
        places_.refuse({"rewards", std::to_string(i), "label"},
                       "the model of '" + name + "' has " +
                           std::to_string(config.classifier.num_labels) +
                           " labels, counted from 0");
      if (config.max_position_embeddings < recipe_.data.max_length)
        places_.refuse({"roles", name, "model"},
                       "'" + role.model + "' scores at most " +
                           std::to_string(config.max_position_embeddings) +
                           " tokens (max_position_embeddings in its config.json), and what is "
                           "scored has up to data.max_length = " +
                           std::to_string(recipe_.data.max_length) +
                           "; lower that, or take another reward model");
    }
    const int64_t labels = recipes::recipe_type(recipe_).score_labels(recipe_);
    if (name != recipes::Recipe::kDrivingRole || labels == 0) return;
    const models::ModelConfig config = models::read_model_config(role.model);
    if (config.classifies() && config.classifier.num_labels != labels)
      places_.refuse({"roles", name, "model"}, "'" + role.model + "' is a classifier of " +
                                                   std::to_string(config.classifier.num_labels) +
                                                   " labels, reward_model.num_labels is " +
                                                   std::to_string(labels));
  }

  void check_sources(const std::string& block, const std::vector<data::Source>& sources) const {
    for (size_t i = 0; i < sources.size(); ++i)
      try {
        data::expand_sources({sources[i]});
      } catch (const Error& error) {
        places_.refuse({"data", block, std::to_string(i), "path"}, error.message());
      }
  }

  const recipes::Recipe& recipe_;
  const recipes::RecipePlaces& places_;
};

}  // namespace

void check_recipe(const recipes::Recipe& recipe, const recipes::RecipePlaces& places,
                  const LoadOptions& options) {
  TopLevelCheck(recipe, places).run();
  RoleCheck(recipe, places, options).run();
  check_data(recipe, places);
  check_effects(recipe, places);
  check_least_rate(recipe, places);
  check_devices(recipe, places, options.is_launched);
  check_ports(recipe, places, options.is_launched);
  recipes::check_reward_roles(recipe, places);
  if (recipe.generation) recipes::check_generation(recipe, places);
  recipes::check_external_roles(recipe, places);
  recipes::check_lora(recipe, places);
  recipes::recipe_type(recipe).check(recipe, places);
  // Those of pods are not here.
  const bool here = recipe.launch.backend != recipes::Backend::kKubernetes;
  if (!options.check_files || !here) return;
  FileCheck(recipe, places).run();
  if (!options.check_inputs) return;
  recipes::check_drawn_length(recipe, places);
  recipes::recipe_type(recipe).check_inputs(recipe, places);
}

}  // namespace retort::launch
