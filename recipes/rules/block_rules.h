// The rules of the blocks that rules.cc alone calls, a .cc a block. A block of which recipe types
// have rules too has a header of its own: data.h, train.h, generation.h, references.h.
//
// Each refuses at the place of a key, by kInvalidArgument unless it says otherwise.
#pragma once

#include <vector>

#include "recipes/document/launch_options.h"
#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"
#include "recipes/document/role_options.h"
#include "recipes/document/train_options.h"
#include "recipes/rewards/options.h"
#include "recipes/rules/launcher.h"

namespace retort::recipes {

// blocks.cc: which blocks a recipe of its type must have and must not have (RecipeType::blocks,
// RecipeType::generates), and the keys above all blocks.
void check_blocks(const Recipe& recipe, const RecipePlaces& places);

// roles.cc: every role by itself, and whether anything uses it. kUnavailable for a device without
// `has_cuda`: this build or machine lacks it.
void check_roles(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 bool has_cuda);

// environment.cc: a role that is an environment has nothing of a model's; check_roles calls it.
void check_environment_role(const std::string& name, const RoleOptions& role,
                            const RecipePlaces& places);
// The block `environment`: its role is one, and does nothing else; lengths and times have room.
// Rewards of type: environment need it.
void check_environment(const Recipe& recipe, const RecipePlaces& places);
// The chat template joins turns without tokenising again (models::TurnSuffix), and teaches one
// format of calls; one that prints the day needs data.template_date. Opens template and tokenizer.
void check_turns(const Recipe& recipe, const RecipePlaces& places);

// devices.cc: refuses lists that have no effect, that no host can have, or that have fewer devices
// than the role has ranks on a host. `is_launched`: by retort launch, which knows where each
// process is.
void check_devices(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                   bool is_launched);

// external_roles.cc: what no engine of a role's kind can do in this recipe.
void check_external_roles(const Recipe& recipe, const RecipePlaces& places);

// lora.cc: roles that do not train have no adapter. An adapter alone is pushed to a generator of
// ours that has the student's model.
void check_lora(const Recipe& recipe, const RecipePlaces& places);
// The model has the matrices that are adapted, and the folder of the adapter that training starts
// from is there, with the recipe's settings.
void check_lora_files(const Recipe& recipe, const RecipePlaces& places);

// launch.cc: where processes are placed must be asked for by the backend, and they must fit.
void check_hosts(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher);
// The student may go on with fewer replicas where a run goes on by itself, and hosts can be lost.
void check_min_dp(const LaunchOptions& launch, const RoleOptions& student,
                  const TrainOptions& train, const RecipePlaces& places);
// The next launcher must prove the secret of the one before.
void check_launcher_lost(const LaunchOptions& launch, const RecipePlaces& places);
// Refuses a time that no collective is held to. A replica of a serving role has its own
// collectives.
void check_collective_timeout(const Recipe& recipe, const RecipePlaces& places);

// kubernetes.cc: refuses what could not run in pods.
void check_kubernetes(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher);

// rpc.cc: refuses device maps that lead nowhere, and keys that change nothing where no role speaks
// to another.
void check_rpc(const Recipe& recipe, const RecipePlaces& places);
// Calls that may be in flight, and for `is_launched` a port for each process of a host.
void check_ports(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 bool is_launched);

// rewards.cc: roles that rewards name are declared, of their own, and asked for one thing.
void check_reward_roles(const Recipe& recipe, const RecipePlaces& places);
// Opens the files of rewards[].template.
void check_judge_templates(const std::vector<rewards::RewardOptions>& rewards,
                           const RecipePlaces& places);

}  // namespace retort::recipes
