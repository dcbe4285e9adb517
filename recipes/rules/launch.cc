// Rules of the `launch:` block.
#include "recipes/rules/block_rules.h"

#include <string>

#include "base/error.h"
#include "base/units.h"
#include "recipes/rules/changed_field.h"
#include "recipes/run/rank/student_options.h"

namespace retort::recipes {
namespace {

// Under Slurm nobody starts a single process of a step again. A value of 0 says what happens then,
// that the run ends, so it is allowed.
void check_slurm(const LaunchOptions& launch, const Roles& roles, const RecipePlaces& places) {
  const int64_t usual = RoleOptions().restarts;
  for (const auto& [name, role] : roles)
    if (role.restarts != usual && role.restarts != 0)
      places.refuse({"roles", name, "restarts"},
                    "has no effect with launch.backend: slurm: a process that is lost ends the "
                    "run, which launch.max_restarts or launch.slurm.requeue begins again from its "
                    "last checkpoint; remove the key");
  if (launch.launcher_lost != LauncherLost::kStop)
    places.refuse({"launch", "launcher_lost"},
                  "continue has no effect with launch.backend: slurm: a job ends with its "
                  "launcher, and launch.slurm.requeue begins it again; remove the key");
}

}  // namespace

void check_hosts(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher) {
  const LaunchOptions& launch = recipe.launch;
  const std::string has =
      "has no effect with launch.backend: " + std::string(enum_name(launch.backend)) +
      "; write backend: ";

  // The keys of other backends must be as they are by default: nobody would read a changed one.
  if (launch.backend == Backend::kKubernetes)
    check_kubernetes(recipe, places, launcher);
  else if (const std::string changed = changed_field(launch.kubernetes); !changed.empty())
    places.refuse({"launch", "kubernetes", changed}, has + "kubernetes");
  if (launch.backend != Backend::kSlurm)
    if (const std::string changed = changed_field(launch.slurm); !changed.empty())
      places.refuse({"launch", "slurm", changed}, has + "slurm");
  if (launch.backend != Backend::kSsh) {
    const std::string why = has + "ssh";
    if (!launch.hosts.empty()) places.refuse({"launch", "hosts"}, why);
    if (const std::string changed = changed_field(launch.ssh); !changed.empty())
      places.refuse({"launch", "ssh", changed}, why);
    for (const auto& [name, role] : recipe.roles)
      if (!role.hosts.empty()) places.refuse({"roles", name, "hosts"}, why);
    if (launch.backend == Backend::kSlurm) check_slurm(launch, recipe.roles, places);
    return;
  }

  if (launch.hosts.empty())
    places.refuse({"launch", "backend"},
                  "ssh needs launch.hosts, e.g. hosts: [{host: gpu1, slots: 8}]");
  try {
    launcher.processes_on_hosts(recipe);
  } catch (const Error& error) {
    places.refuse({"launch", "hosts"}, error.message());
  }
}

void check_min_dp(const LaunchOptions& launch, const RoleOptions& student,
                  const TrainOptions& train, const RecipePlaces& places) {
  if (!launch.min_dp) return;
  const KeyPath path{"launch", "min_dp"};
  if (launch.backend != Backend::kSsh)
    places.refuse(path, "has no effect without launch.backend: ssh, whose hosts may be lost");
  if (launch.max_restarts == 0)
    places.refuse(path, "has no effect without launch.max_restarts: no run goes on by itself");
  if (*launch.min_dp > student.world.dp)
    places.refuse(path,
                  "is above roles.student.world.dp, which is " + std::to_string(student.world.dp));
  if (train.batch_size_rampup_steps > 0)
    places.refuse(path,
                  "goes with a batch that is the same for every dp, which is not so while "
                  "train.batch_size_rampup_steps let it grow");
}

void check_launcher_lost(const LaunchOptions& launch, const RecipePlaces& places) {
  if (launch.launcher_lost == LauncherLost::kContinue && !launch.secret_file)
    places.refuse({"launch", "launcher_lost"},
                  "continue needs launch.secret_file, which the next launcher reads");
}

void check_collective_timeout(const Recipe& recipe, const RecipePlaces& places) {
  const Duration asked = recipe.launch.collective_timeout;
  if (asked == LaunchOptions().collective_timeout) return;
  for (const auto& [name, role] : recipe.roles)
    if (name != Recipe::kDrivingRole && role.world.tp * role.world.pp > 1) return;

  const KeyPath path{"launch", "collective_timeout"};
  if (recipe.student().world.world_size() == 1)
    places.refuse(path,
                  "has no effect: no role is split over processes, so there is no collective; "
                  "remove the key");
  const Duration waits = student_timeout(recipe);
  if (waits > asked)
    places.refuse(
        path,
        "has no effect below " + format_duration(waits) +
            ": a rank of the student may wait that long for other roles and for rewards "
            "(launch.load_timeout, rpc.timeout, generation.timeout, rewards[].timeout), and the "
            "others for it");
}

}  // namespace retort::recipes
