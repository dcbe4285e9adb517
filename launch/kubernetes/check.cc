#include "launch/kubernetes/check.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "launch/kubernetes/manifests.h"

namespace retort::launch {
namespace {

using recipes::Recipe;
using recipes::RecipePlaces;

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

void check_pods(const Recipe& recipe, const RecipePlaces& places) {
  try {
    check_stop_timeout(recipe, places);
    kubernetes_manifests(recipe, {});
  } catch (const Error& error) {
    // The message names a key, "launch.kubernetes.pod.hostname: why", whose line the recipe's
    // places know.
    const std::string message = error.message();
    const size_t end = message.find(": ");
    if (!message.starts_with("launch.kubernetes.") || end == std::string::npos) throw;
    places.refuse(recipes::key_path(message.substr(0, end)), message.substr(end + 2));
  }
}

}  // namespace retort::launch
