// A run as Kubernetes is told of it: what `retort launch --dry-run` prints.
//
//   Secret     the run's secret, a file in every pod
//   ConfigMap  the recipe, resolved: a file in every pod
//   Service    headless: a pod is found by JOB-INDEX.RUN, from before it is ready
//   Job        one a role, indexed: a pod for each rank, which runs `retort join`
//
// A pod of a Job gets JOB_COMPLETION_INDEX, the host name JOB-INDEX, and in its /etc/hosts its own
// full name. Its role is in RETORT_ROLE. The student's pods find their pod 0 by their own name, the
// others are told.
//
// Ending: a pod that fails fails its Job at once (nothing is started again: no pod could take a
//   rank over), and the run, whose other ranks notice. A serving role ends when student/0 asks it.
#pragma once

#include <string>

#include "recipes/document/recipe.h"

namespace retort::launch {

// Where the run meets, unless launch.rendezvous.port says so.
inline constexpr int64_t kKubernetesPort = 7070;

struct ManifestOptions {
  std::string secret;
  bool resume = false, overwrite = false;
};

// YAML documents, for `kubectl apply -f -`. A pure function.
// Errors: kInvalidArgument naming the key of launch.kubernetes.pod that contradicts the run.
std::string kubernetes_manifests(const recipes::Recipe& recipe, const ManifestOptions& options);

// The recipe in the ConfigMap: what each `retort join` reads. Its processes are nobody's to place.
recipes::Recipe recipe_of_pods(const recipes::Recipe& recipe);

// The grace period of every pod: of launch.kubernetes.pod, or recipes::kPodGrace.
Duration pod_grace(const recipes::Recipe& recipe);

}  // namespace retort::launch
