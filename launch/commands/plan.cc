// retort plan: what a recipe will start and what it will cost, from sizes alone.
#include <algorithm>
#include <cstdio>

#include "base/json_text.h"
#include "launch/commands/commands.h"
#include "launch/recipe.h"
#include "models/config.h"
#include "models/memory_estimate.h"
#include "roles/payload.h"

namespace retort::launch {
namespace {

struct RolePlan {
  std::string name;
  std::string model;
  int64_t ranks = 1, parameters = 0;
  // of the rank that needs most; of a serving role only the parameters count
  models::TrainingMemory memory;
  bool trains = false;
  double flops_per_token = 0;
  double flops_per_rank() const { return flops_per_token / static_cast<double>(ranks); }
};

// Of a micro-batch on one dp rank, at most.
int64_t micro_batch_tokens(const Recipe& recipe) {
  if (recipe.train.tokens_per_batch) return *recipe.train.tokens_per_batch;
  return recipe.train.per_device_train_batch_size.value_or(0) * recipe.data.max_length;
}

RolePlan plan_role(const Recipe& recipe, const std::string& name, const RoleOptions& role) {
  const models::ModelConfig config = models::read_model_config(role.model);
  RolePlan plan{.name = name,
                .model = role.model,
                .ranks = role.world.world_size(),
                .parameters = config.num_parameters()};
  plan.trains = name == "student";
  plan.flops_per_token = (plan.trains ? 6 : 2) * static_cast<double>(plan.parameters);
  for (int64_t stage = 0; stage < role.world.pp; ++stage) {
    const models::TrainingMemory memory = models::estimate_training_memory(
        config, {.layout = role.world,
                 .stage = stage,
                 .tokens = micro_batch_tokens(recipe),
                 .micro_batches = recipe.train.gradient_accumulation_steps,
                 .dtype_bytes = role.dtype == recipes::FloatType::kFloat32 ? 4 : 2,
                 .gradient_checkpointing = recipe.train.gradient_checkpointing,
                 .gradient_checkpointing_every = recipe.train.gradient_checkpointing_every});
    const auto most = [&](const models::TrainingMemory& m) {
      return plan.trains ? m.peak() : m.parameters;
    };
    if (most(memory) > most(plan.memory)) plan.memory = memory;
  }
  if (!plan.trains) plan.memory = {.parameters = plan.memory.parameters};
  return plan;
}

struct LinkPlan {
  std::string teacher;
  double bytes_per_token = 0, bytes_per_step = 0, prefetch_bytes = 0;
};

double tokens_per_step(const Recipe& recipe) {
  return static_cast<double>(micro_batch_tokens(recipe) * recipe.train.gradient_accumulation_steps *
                             recipe.roles.at("student").world.dp);
}

LinkPlan plan_link(const Recipe& recipe, const std::string& role) {
  const RoleOptions& teacher = recipe.roles.at(role);
  const models::ModelConfig config = models::read_model_config(teacher.model);
  const int64_t dtype_bytes = teacher.dtype == recipes::FloatType::kFloat32 ? 4 : 2;
  LinkPlan plan{.teacher = role};
  plan.bytes_per_token = static_cast<double>(roles::payload_bytes_per_row(
      recipe.distill->payload_spec(), config.hidden_size, config.vocab_size, dtype_bytes));
  // at most: every token a target
  plan.bytes_per_step = plan.bytes_per_token * tokens_per_step(recipe);
  plan.prefetch_bytes = plan.bytes_per_step * static_cast<double>(recipe.distill->prefetch + 1) /
                        static_cast<double>(recipe.roles.at("student").world.dp);
  return plan;
}

double mib(double bytes) { return bytes / 1048576.0; }
double mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

struct Plan {
  std::vector<RolePlan> roles;
  std::vector<LinkPlan> links;

  // The role with the most work per token and rank sets the pace when everything overlaps.
  const RolePlan& bottleneck() const {
    return *std::max_element(roles.begin(), roles.end(), [](const RolePlan& a, const RolePlan& b) {
      return a.flops_per_rank() < b.flops_per_rank();
    });
  }
};

Plan make_plan(const Recipe& recipe) {
  Plan plan;
  for (const auto& [name, role] : recipe.roles)
    plan.roles.push_back(plan_role(recipe, name, role));
  if (recipe.distill)
    for (const auto& teacher : recipe.distill->teachers)
      plan.links.push_back(plan_link(recipe, teacher.role));
  return plan;
}

void print_text(const Recipe& recipe, const Plan& plan) {
  std::printf("%-12s %6s %12s %12s %12s %12s %12s %12s  model\n", "role", "ranks", "parameters",
              "weights MiB", "grads MiB", "optim MiB", "kept MiB", "peak MiB");
  for (const RolePlan& role : plan.roles)
    std::printf("%-12s %6lld %12lld %12.1f %12.1f %12.1f %12.1f %12.1f  %s\n", role.name.c_str(),
                static_cast<long long>(role.ranks), static_cast<long long>(role.parameters),
                mib(role.memory.parameters), mib(role.memory.gradients), mib(role.memory.optimizer),
                mib(role.memory.activations), mib(role.memory.peak()), role.model.c_str());
  std::printf(
      "MiB: of the rank that needs most; kept: activations between forward and backward; peak: of "
      "tensors in a step, at least "
      "(a serving role: its weights)\n");
  std::printf("tokens per step: at most %.0f\n", tokens_per_step(recipe));
  for (const LinkPlan& link : plan.links)
    std::printf(
        "link %s -> student: %.0f bytes per target token, at most %.2f MiB per step; prefetch %lld "
        "holds at most %.2f MiB "
        "per student rank\n",
        link.teacher.c_str(), link.bytes_per_token, mib(link.bytes_per_step),
        static_cast<long long>(recipe.distill->prefetch), mib(link.prefetch_bytes));
  std::printf("expected bottleneck: %s (%.3g FLOP per token and rank)\n",
              plan.bottleneck().name.c_str(), plan.bottleneck().flops_per_rank());
}

}  // namespace

std::string plan_json(const Recipe& recipe) {
  const Plan plan = make_plan(recipe);
  std::string role_json, link_json;
  for (const RolePlan& role : plan.roles)
    role_json += (role_json.empty() ? "" : ", ") +
                 JsonLine()
                     .add("role", std::string_view(role.name))
                     .add("ranks", role.ranks)
                     .add("parameters", role.parameters)
                     .add("weight_bytes_per_rank", role.memory.parameters)
                     .add("gradient_bytes_per_rank", role.memory.gradients)
                     .add("optimizer_bytes_per_rank", role.memory.optimizer)
                     .add("activation_bytes_per_rank", role.memory.activations)
                     .add("peak_bytes_per_rank", role.memory.peak())
                     .str();
  for (const LinkPlan& link : plan.links)
    link_json += (link_json.empty() ? "" : ", ") +
                 JsonLine()
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
  const Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  if (command.json)
    std::printf("%s\n", plan_json(recipe).c_str());
  else
    print_text(recipe, make_plan(recipe));
  return 0;
}

}  // namespace retort::launch
