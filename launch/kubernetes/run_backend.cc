#include "launch/kubernetes/run_backend.h"

#include "base/error.h"
#include "launch/backends/run_store.h"
#include "launch/kubernetes/manifests.h"
#include "launch/process/shell_word.h"

namespace retort::launch {

std::string KubernetesRunBackend::dry_run(bool resume, bool overwrite) const {
  return kubernetes_manifests(
      recipe(), {.secret = run_secret(recipe()), .resume = resume, .overwrite = overwrite});
}

void KubernetesRunBackend::check() {
  throw Error(ErrorCode::kInvalidArgument,
              "launch.backend: kubernetes: retort does not talk to the cluster; apply what it "
              "prints: retort launch " +
                  shell_word(options().recipe_file) + " --dry-run | kubectl apply -f -");
}

std::unique_ptr<RunBackend::Start> KubernetesRunBackend::begin(const Beginning&, SignalCatcher&) {
  check();
  return nullptr;
}

}  // namespace retort::launch
