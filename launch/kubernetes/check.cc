#include "launch/kubernetes/check.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "launch/kubernetes/manifests.h"
#include "launch/kubernetes/names.h"
#include "recipes/input_paths.h"

namespace retort::launch {
namespace {
namespace fs = std::filesystem;

using recipes::KeyPath;
using recipes::Recipe;
using recipes::RecipePlaces;

// "rewards[0].template" -> {"rewards", "0", "template"}.
KeyPath parts_of(const std::string& key) {
  KeyPath parts;
  for (size_t begin = 0; begin < key.size();) {
    const size_t end = std::min(key.find_first_of(".[]", begin), key.size());
    if (end > begin) parts.push_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Paths are those of the pods, which have no folder that they were started in.
void check_paths(const Recipe& recipe, const RecipePlaces& places) {
  const auto check = [&](const KeyPath& key, const std::string& path) {
    if (!fs::path(path).is_absolute())
      places.refuse(key, "'" + path +
                             "' is relative; with launch.backend: kubernetes write the absolute "
                             "path in the pods");
  };
  check({"output_dir"}, recipe.output_dir);
  for (const recipes::InputPath& input : recipes::input_paths(recipe))
    check(parts_of(input.key), input.path);

  const auto* volume = volume_of(recipe, recipe.output_dir);
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

void check_restarts(const Recipe& recipe, const RecipePlaces& places) {
  const std::string why =
      "has no effect with launch.backend: kubernetes, where nobody starts a single process again: "
      "a pod that fails ends the run, and all are started again with --resume";
  if (recipe.launch.max_restarts > 0) places.refuse({"launch", "max_restarts"}, why);
  for (const auto& [name, role] : recipe.roles)
    if (name != Recipe::kDrivingRole && role.restarts != 0)
      places.refuse({"roles", name, "restarts"}, why + "; write 0");
}

void check_stop_timeout(const Recipe& recipe, const RecipePlaces& places) {
  const Duration grace = pod_grace(recipe);
  const Duration most = grace - recipes::kPodMargin;
  if (recipe.launch.stop_timeout <= most) return;
  places.refuse({"launch", "stop_timeout"},
                "Kubernetes kills a pod " + format_duration(grace) +
                    " after it asked it to end, so at most " +
                    format_duration(std::max(most, Duration(0))) +
                    " are the run's; write a larger "
                    "launch.kubernetes.pod.terminationGracePeriodSeconds");
}

}  // namespace

void check_kubernetes(const Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.launch.kubernetes.image)
    places.refuse({"launch", "kubernetes", "image"},
                  "is missing; expected the image that has the program, e.g. image: "
                  "registry.example/retort:1");
  if (recipe.launch.rendezvous.address)
    places.refuse({"launch", "rendezvous", "address"},
                  "has no effect with launch.backend: kubernetes: the run meets at the student's "
                  "pod 0; remove it");
  if (recipe.launch.launcher_lost == recipes::LauncherLost::kContinue)
    places.refuse({"launch", "launcher_lost"},
                  "continue has no effect with launch.backend: kubernetes: the student's pod 0 "
                  "keeps the run; remove it");
  check_restarts(recipe, places);
  check_paths(recipe, places);

  // Whatever else contradicts the run shows when its pods are written.
  try {
    check_stop_timeout(recipe, places);
    kubernetes_manifests(recipe, {});
  } catch (const Error& error) {
    // "launch.kubernetes.pod.hostname: why"
    const std::string message = error.message();
    const size_t end = message.find(": ");
    if (!message.starts_with("launch.kubernetes.") || end == std::string::npos) throw;
    places.refuse(parts_of(message.substr(0, end)), message.substr(end + 2));
  }
}

}  // namespace retort::launch
