// Rules of launch.kubernetes.
#include "recipes/rules/block_rules.h"

#include <filesystem>
#include <string>

#include "recipes/roles/input_paths.h"

namespace retort::recipes {
namespace {

// Paths are those in the pods, which have no folder that they were started in to count from.
void check_pod_paths(const Recipe& recipe, const RecipePlaces& places) {
  const auto check = [&](const KeyPath& key, const std::string& path) {
    if (!std::filesystem::path(path).is_absolute())
      places.refuse(key, "'" + path +
                             "' is relative; with launch.backend: kubernetes write the absolute "
                             "path in the pods");
  };
  check({"output_dir"}, recipe.output_dir);
  for (const InputPath& input : input_paths(recipe))
    check(key_path(input.key), input.path);

  const auto* volume = recipe.launch.kubernetes.volume_of(recipe.output_dir);
  if (volume == nullptr)
    places.refuse({"output_dir"},
                  "'" + recipe.output_dir +
                      "' is on none of launch.kubernetes.volumes; it would be lost with the pod, "
                      "and each rank of the student would have its own");
  if (volume->read_only)
    places.refuse({"output_dir"}, "'" + recipe.output_dir + "' is on the volume " + volume->path +
                                      ", which is read_only");
  for (const auto& one : recipe.launch.kubernetes.volumes)
    if ((one.path + "/").starts_with("/etc/retort/"))
      places.refuse(
          {"launch", "kubernetes", "volumes"},
          "'" + one.path + "' is where the recipe and the secret are; choose another path");
}

void check_pod_restarts(const LaunchOptions& launch, const Roles& roles,
                        const RecipePlaces& places) {
  const std::string why =
      "has no effect with launch.backend: kubernetes, where nobody starts a single process again: "
      "a pod that fails ends the run, and all are started again with --resume";
  if (launch.max_restarts > 0) places.refuse({"launch", "max_restarts"}, why);
  for (const auto& [name, role] : roles)
    if (name != Recipe::kDrivingRole && role.restarts != 0)
      places.refuse({"roles", name, "restarts"}, why + "; write 0");
}

}  // namespace

void check_kubernetes(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher) {
  if (!recipe.launch.kubernetes.image)
    places.refuse({"launch", "kubernetes", "image"},
                  "is missing; expected the image that has the program, e.g. image: "
                  "registry.example/retort:1");
  if (recipe.launch.rendezvous.address)
    places.refuse({"launch", "rendezvous", "address"},
                  "has no effect with launch.backend: kubernetes: the run meets at the student's "
                  "pod 0; remove it");
  if (recipe.launch.launcher_lost == LauncherLost::kContinue)
    places.refuse({"launch", "launcher_lost"},
                  "continue has no effect with launch.backend: kubernetes: the student's pod 0 "
                  "keeps the run; remove it");
  check_pod_restarts(recipe.launch, recipe.roles, places);
  check_pod_paths(recipe, places);
  launcher.check_pods(recipe, places);
}

}  // namespace retort::recipes
