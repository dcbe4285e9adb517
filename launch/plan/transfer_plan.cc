#include "launch/plan/transfer_plan.h"

#include <algorithm>

#include "launch/plan/adapter_size.h"
#include "recipes/roles/adapter.h"
#include "recipes/run/inputs/student_model.h"

namespace retort::launch {
namespace {

using recipes::Recipe;

// Weights of the whole model, or of the adapter alone, in the generator's dtype, to each replica.
TransferPlan plan_push(const Recipe& recipe, const RolePlan& student) {
  const std::string& name = recipe.generation->role;
  const recipes::RoleOptions& generator = recipe.roles.at(name);
  const double dtype_bytes = generator.dtype == recipes::FloatType::kFloat32 ? 4 : 2;
  int64_t pushed = student.parameters;
  if (recipes::pushes_adapter(recipe))
    pushed =
        adapter_size(recipes::role_config(recipe, student.name), recipes::student_adapter(recipe))
            .on_ranks(generator.world.tp);
  const auto copies = static_cast<double>(std::min<int64_t>(2, generator.world.dp));
  const int64_t every_steps = recipe.weight_sync->every_steps;
  return {
      .what = "push student -> " + name,
      .bytes = static_cast<double>(pushed) * dtype_bytes * copies,
      .every_steps = recipe.grpo ? recipe.grpo->steps_between_pushes(every_steps) : every_steps};
}

TransferPlan plan_gradients(const parallel::Layout& world, const RolePlan& student) {
  // A ring all-reduce sends 2 (n - 1) / n of the gradients' bytes from each rank. Where the
  // optimizer is shared out, a reduce-scatter sends half of that, and an all-gather (n - 1) / n of
  // the parameters' bytes (docs/parallel.md).
  const auto n = static_cast<double>(world.dp);
  const double share = (n - 1) / n;
  const auto gradients = static_cast<double>(student.memory.gradients);
  const auto parameters = static_cast<double>(student.memory.parameters);
  return {.what = "gradients of student",
          .bytes = world.distributed_optimizer ? share * (gradients + parameters)
                                               : 2 * share * gradients};
}

}  // namespace

std::vector<TransferPlan> plan_transfers(const Recipe& recipe, const std::vector<RolePlan>& roles,
                                         const std::vector<recipes::LinkPlan>& links) {
  std::vector<TransferPlan> transfers;
  for (const recipes::LinkPlan& link : links) {
    transfers.push_back(
        {.what = "payload " + link.role + " -> student", .bytes = link.bytes_per_step});
    if (link.named_bytes_per_token > 0)
      transfers.push_back(
          {.what = "ids student -> " + link.role,
           .bytes = link.named_bytes_per_token * link.bytes_per_step / link.bytes_per_token});
  }
  const auto student = std::ranges::find(roles, Recipe::kDrivingRole, &RolePlan::name);
  if (recipe.generation) transfers.push_back(plan_push(recipe, *student));
  const parallel::Layout& world = recipe.student().world;
  if (world.dp > 1) transfers.push_back(plan_gradients(world, *student));
  return transfers;
}

}  // namespace retort::launch
