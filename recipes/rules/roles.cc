// Rules of the `roles:` block.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rules/references.h"

namespace retort::recipes {
namespace {

// Checks every role by itself, and that something uses it.
class RoleCheck {
 public:
  RoleCheck(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
            bool has_cuda)
      : recipe_(recipe), places_(places), launcher_(launcher), has_cuda_(has_cuda) {}

  void run() const {
    if (!recipe_.roles.contains(Recipe::kDrivingRole))
      places_.refuse({"roles"},
                     "`student` is missing; every recipe is driven by a role of that name" +
                         nearest_role(recipe_.roles, Recipe::kDrivingRole));
    for (const auto& [name, role] : recipe_.roles) {
      if (name.empty() || name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
                              std::string::npos)
        places_.refuse({"roles", name}, "a role's name may hold letters, digits, _ and - only");
      check_role(name, role);
    }
  }

 private:
  void check_role(const std::string& name, const RoleOptions& role) const {
    const bool driving = name == Recipe::kDrivingRole;
    if (role.environment) check_environment_role(name, role, places_);
    if (role.model.empty() && !role.external && !role.environment)
      places_.refuse({"roles", name}, "`model` is missing; expected a Hugging Face model folder");
    check_world(name, role.world, driving);
    if (role.world.device == parallel::Device::kCuda && !has_cuda_)
      places_.refuse(
          {"roles", name, "world", "device"},
          "this build has no CUDA module (libretort_cuda.so beside the program); make it with "
          "./dev build --cuda, or use "
          "device: cpu",
          ErrorCode::kUnavailable);
    check_env(name, role);
    check_batching(name, role);
    if (role.restarts < 0) places_.refuse({"roles", name, "restarts"}, "must not be negative");
    if (driving && role.restarts != RoleOptions{}.restarts)
      places_.refuse({"roles", name, "restarts"},
                     "is for roles that serve; " + name + " resumes with --resume");
    if (driving) return;
    if (role.environment && !recipe_.environment)
      places_.refuse(
          {"roles", name, "environment"},
          "answers the turns of nobody: the block `environment: {role: " + name + "}` is missing");
    // Where a key names a role that is not declared, that line is the one to mend, and the type's
    // own checks refuse it.
    const auto used = serving_roles(recipe_);
    const bool all_declared = std::ranges::all_of(
        used, [&](const std::string& each) { return recipe_.roles.contains(each); });
    if (all_declared && !is_passed_over(role) &&
        std::find(used.begin(), used.end(), name) == used.end())
      places_.refuse({"roles", name}, "no part of this recipe uses the role; remove it" +
                                          nearest_role(recipe_.roles, name));
  }

  // The key `environment.role` names a role that is none instead of this one, and is what is wrong.
  bool is_passed_over(const RoleOptions& role) const {
    return role.environment && recipe_.environment &&
           !recipe_.roles.at(recipe_.environment->role).environment;
  }

  void check_env(const std::string& name, const RoleOptions& role) const {
    for (const auto& [variable, value] : role.env) {
      const KeyPath place{"roles", name, "env", variable};
      if (variable.empty() ||
          variable.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos)
        places_.refuse(place,
                       "the name of an environment variable has capital letters, digits and _");
      if (launcher_.sets_variable(variable))
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
    const auto place = [&](const char* field) { return KeyPath{"roles", name, "world", field}; };
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

  void check_batching(const std::string& name, const RoleOptions& role) const {
    if (role.batching == Batching::kAsSent) return;
    if (role.external)
      places_.refuse({"roles", name, "batching"}, "an external engine batches as it likes");
    if (name == Recipe::kDrivingRole)
      places_.refuse({"roles", name, "batching"},
                     "has no effect on the driving role, which serves no requests");
    if (recipe_.is_generator(name))
      places_.refuse({"roles", name, "batching"},
                     "is for teachers and references; a generator always computes the sequences "
                     "of a request together");
  }

  const Recipe& recipe_;
  const RecipePlaces& places_;
  const Launcher& launcher_;
  const bool has_cuda_;
};

}  // namespace

void check_roles(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 bool has_cuda) {
  RoleCheck(recipe, places, launcher, has_cuda).run();
}

}  // namespace retort::recipes
