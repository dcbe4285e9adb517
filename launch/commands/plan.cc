// retort plan: what a recipe will start and what it will cost, from sizes alone.
#include <algorithm>
#include <cstdio>

#include "base/json_text.h"
#include "launch/commands/commands.h"
#include "launch/recipe.h"
#include "models/config.h"
#include "roles/payload.h"

namespace retort::launch {
namespace {

struct RolePlan {
  std::string name;
  std::string model;
  int64_t ranks = 1, parameters = 0;
  double weights = 0, gradients = 0, optimizer = 0;  // bytes per rank
  double flops_per_token = 0;
  double flops_per_rank() const { return flops_per_token / static_cast<double>(ranks); }
};

RolePlan plan_role(const std::string& name, const RoleOptions& role) {
  const models::ModelConfig config = models::read_model_config(role.model);
  RolePlan plan{.name = name, .model = role.model, .ranks = role.world.world_size(), .parameters = config.num_parameters()};
  const auto n = static_cast<double>(plan.parameters);
  const double bytes = role.dtype == recipes::FloatType::kFloat32 ? 4 : 2;
  const bool trains = name == "student";
  plan.weights = n * bytes;
  if (trains) {
    plan.gradients = n * 4 + n * bytes;                // fp32 main_grad, and the autograd engine's own while it runs
    plan.optimizer = n * 8 + (bytes < 4 ? n * 4 : 0);  // two moments, and fp32 masters
  }
  plan.flops_per_token = (trains ? 6 : 2) * n;
  return plan;
}

struct LinkPlan {
  std::string teacher;
  double bytes_per_token = 0, bytes_per_step = 0, prefetch_bytes = 0;
};

double tokens_per_step(const Recipe& recipe) {
  const double rows = static_cast<double>(recipe.train.per_device_train_batch_size.value_or(0));
  const double micro = recipe.train.tokens_per_batch ? static_cast<double>(*recipe.train.tokens_per_batch)
                                                     : rows * static_cast<double>(recipe.data.max_length);
  return micro * static_cast<double>(recipe.train.gradient_accumulation_steps) *
         static_cast<double>(recipe.roles.at("student").world.dp);
}

LinkPlan plan_link(const Recipe& recipe, const std::string& role) {
  const RoleOptions& teacher = recipe.roles.at(role);
  const models::ModelConfig config = models::read_model_config(teacher.model);
  const int64_t dtype_bytes = teacher.dtype == recipes::FloatType::kFloat32 ? 4 : 2;
  LinkPlan plan{.teacher = role};
  plan.bytes_per_token = static_cast<double>(
      roles::payload_bytes_per_row(recipe.distill->payload_spec(), config.hidden_size, config.vocab_size, dtype_bytes));
  plan.bytes_per_step = plan.bytes_per_token * tokens_per_step(recipe);  // at most: every token a target
  plan.prefetch_bytes = plan.bytes_per_step * static_cast<double>(recipe.distill->prefetch + 1) /
                        static_cast<double>(recipe.roles.at("student").world.dp);
  return plan;
}

double mib(double bytes) { return bytes / 1048576.0; }

struct Plan {
  std::vector<RolePlan> roles;
  std::vector<LinkPlan> links;

  // The role with the most work per token and rank sets the pace when everything overlaps.
  const RolePlan& bottleneck() const {
    return *std::max_element(roles.begin(), roles.end(),
                             [](const RolePlan& a, const RolePlan& b) { return a.flops_per_rank() < b.flops_per_rank(); });
  }
};

Plan make_plan(const Recipe& recipe) {
  Plan plan;
  for (const auto& [name, role] : recipe.roles) plan.roles.push_back(plan_role(name, role));
  if (recipe.distill)
    for (const auto& teacher : recipe.distill->teachers) plan.links.push_back(plan_link(recipe, teacher.role));
  return plan;
}

void print_text(const Recipe& recipe, const Plan& plan) {
  std::printf("%-12s %6s %12s %12s %12s %12s  model\n", "role", "ranks", "parameters", "weights MiB", "grads MiB", "optim MiB");
  for (const RolePlan& role : plan.roles)
    std::printf("%-12s %6lld %12lld %12.1f %12.1f %12.1f  %s\n", role.name.c_str(), static_cast<long long>(role.ranks),
                static_cast<long long>(role.parameters), mib(role.weights), mib(role.gradients), mib(role.optimizer),
                role.model.c_str());
  std::printf("tokens per step: at most %.0f\n", tokens_per_step(recipe));
  for (const LinkPlan& link : plan.links)
    std::printf(
        "link %s -> student: %.0f bytes per target token, at most %.2f MiB per step; prefetch %lld holds at most %.2f MiB "
        "per student rank\n",
        link.teacher.c_str(), link.bytes_per_token, mib(link.bytes_per_step), static_cast<long long>(recipe.distill->prefetch),
        mib(link.prefetch_bytes));
  std::printf("expected bottleneck: %s (%.3g FLOP per token and rank)\n", plan.bottleneck().name.c_str(),
              plan.bottleneck().flops_per_rank());
}

}  // namespace

std::string plan_json(const Recipe& recipe) {
  const Plan plan = make_plan(recipe);
  std::string role_json, link_json;
  for (const RolePlan& role : plan.roles)
    role_json += (role_json.empty() ? "" : ", ") + JsonLine()
                                                       .add("role", std::string_view(role.name))
                                                       .add("ranks", role.ranks)
                                                       .add("parameters", role.parameters)
                                                       .add("weight_bytes_per_rank", role.weights)
                                                       .add("gradient_bytes_per_rank", role.gradients)
                                                       .add("optimizer_bytes_per_rank", role.optimizer)
                                                       .str();
  for (const LinkPlan& link : plan.links)
    link_json += (link_json.empty() ? "" : ", ") + JsonLine()
                                                       .add("teacher", std::string_view(link.teacher))
                                                       .add("bytes_per_target_token", link.bytes_per_token)
                                                       .add("max_bytes_per_step", link.bytes_per_step)
                                                       .add("max_prefetch_bytes_per_rank", link.prefetch_bytes)
                                                       .str();
  return JsonLine()
      .raw("roles", "[" + role_json + "]")
      .raw("links", "[" + link_json + "]")
      .add("max_tokens_per_step", tokens_per_step(recipe))
      .add("expected_bottleneck", std::string_view(plan.bottleneck().name))
      .str();
}

int run_plan(const RecipeCommand& command) {
  const Recipe recipe = load_recipe(command.recipe, command.overrides);
  if (command.json)
    std::printf("%s\n", plan_json(recipe).c_str());
  else
    print_text(recipe, make_plan(recipe));
  return 0;
}

}  // namespace retort::launch
