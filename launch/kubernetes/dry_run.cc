#include "launch/kubernetes/dry_run.h"

#include <cstdio>

#include "base/error.h"
#include "launch/backends/shell_word.h"
#include "launch/commands/run_store.h"
#include "launch/kubernetes/manifests.h"

namespace retort::launch {

int run_dry(const DryRun& how, const recipes::Recipe& recipe) {
  if (recipe.launch.backend != recipes::Backend::kKubernetes)
    throw Error(ErrorCode::kInvalidArgument,
                "--dry-run prints what a cluster is told, with launch.backend: kubernetes; what "
                "this recipe would start is shown by: retort plan " +
                    shell_word(how.recipe_file));
  if (!how.is_asked)
    throw Error(ErrorCode::kInvalidArgument,
                "launch.backend: kubernetes: retort does not talk to the cluster; apply what it "
                "prints: retort launch " +
                    shell_word(how.recipe_file) + " --dry-run | kubectl apply -f -");

  const std::string text = kubernetes_manifests(
      recipe,
      {.secret = run_secret(recipe), .resume = how.resume, .overwrite = how.overwrite});
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace retort::launch
