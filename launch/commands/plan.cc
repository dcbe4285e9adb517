// retort plan: what a recipe will start and what it will cost, from sizes alone.
#include <algorithm>
#include <cstdio>

#include "base/json_text.h"
#include "base/process_name.h"
#include "launch/backends/placement.h"
#include "launch/commands/commands.h"
#include "launch/commands/model_check.h"
#include "launch/yaml/recipe_file.h"
#include "models/config.h"
#include "models/memory_estimate.h"
#include "recipes/registry.h"

namespace retort::launch {
namespace {

using recipes::FloatType;
using recipes::LinkPlan;
using recipes::Recipe;
using recipes::RoleOptions;

struct RolePlan {
  std::string name;
  std::string model;
  int64_t ranks = 1, parameters = 0;
  // of the rank that needs most; of a serving role only the parameters count
  models::TrainingMemory memory;
  // of the student the copy of what it pushed last, for a generator that is started again without
  // it; of a generator what is pushed, beside the weights in use
  int64_t pushed_weights = 0;
  bool pushed_on_host = false;  // and not where it computes
  int64_t kv_cache = 0;         // of a generator
  bool trains = false;
  double flops_per_token = 0;
  int64_t peak() const { return memory.peak() + kv_cache + (pushed_on_host ? 0 : pushed_weights); }
  double flops_per_rank() const { return flops_per_token / static_cast<double>(ranks); }
};

// Whether the student keeps what it pushed last (roles/generator/pushed_weights.h).
bool keeps_pushed_weights(const Recipe& recipe) {
  return recipe.generation && recipe.roles.at(recipe.generation->role).restarts > 0;
}

// What its processes need here: nothing, but for a generator the student's weights, and once more
// while new ones arrive. What the engine needs where it runs is for the engine to say.
RolePlan plan_external(const Recipe& recipe, const std::string& name, const RoleOptions& role) {
  RolePlan plan{
      .name = name, .model = role.external->url.front(), .ranks = role.world.world_size()};
  if (!recipe.is_generator(name)) return plan;
  const int64_t dtype_bytes = role.dtype == FloatType::kFloat32 ? 4 : 2;
  plan.parameters = models::read_model_config(recipe.student().model).num_parameters();
  plan.memory.parameters = plan.parameters * dtype_bytes;
  plan.pushed_weights = plan.memory.parameters;
  return plan;
}

RolePlan plan_role(const Recipe& recipe, const std::string& name, const RoleOptions& role,
                   int64_t micro_batch_tokens, int64_t extra_forwards) {
  if (role.external) return plan_external(recipe, name, role);
  const models::ModelConfig config = models::read_model_config(role.model);
  RolePlan plan{.name = name,
                .model = role.model,
                .ranks = role.world.world_size(),
                .parameters = config.num_parameters()};
  plan.trains = name == Recipe::kDrivingRole;
  // A forward pass is 2 FLOP per parameter and token, a backward pass 4.
  const int64_t passes = 2 * (1 + extra_forwards) + (plan.trains ? 4 : 0);
  plan.flops_per_token = static_cast<double>(passes) * static_cast<double>(plan.parameters);

  // The memory of the stage that needs most.
  for (int64_t stage = 0; stage < role.world.pp; ++stage) {
    const models::TrainingMemory memory = models::estimate_training_memory(
        config, {.layout = role.world,
                 .stage = stage,
                 .tokens = micro_batch_tokens,
                 .micro_batches = recipe.train.gradient_accumulation_steps,
                 .dtype_bytes = role.dtype == FloatType::kFloat32 ? 4 : 2,
                 .gradient_checkpointing = recipe.train.gradient_checkpointing,
                 .gradient_checkpointing_every = recipe.train.gradient_checkpointing_every,
                 .bucket_bytes = static_cast<int64_t>(recipe.train.grad_bucket_bytes.bytes)});
    const auto most = [&](const models::TrainingMemory& m) {
      return plan.trains ? m.peak() : m.parameters;
    };
    if (most(memory) > most(plan.memory)) plan.memory = memory;
  }

  if (!plan.trains) plan.memory = {.parameters = plan.memory.parameters};

  // A rank of the first replica sends its own parameters; a copy of a device's lies on the host.
  if (plan.trains && keeps_pushed_weights(recipe)) {
    plan.pushed_weights = plan.memory.parameters;
    plan.pushed_on_host = role.world.device != parallel::Device::kCpu;
  }

  // A generator draws on with the old weights until all of the new ones are there.
  if (recipe.generation && name == recipe.generation->role) {
    plan.pushed_weights = plan.memory.parameters;
    plan.kv_cache = static_cast<int64_t>(recipe.generation->kv_cache.bytes);
  }
  return plan;
}

double mib(double bytes) { return bytes / 1048576.0; }
double mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

// What runs on one of launch.hosts.
struct HostPlan {
  std::string host;
  int64_t slots = 0;
  std::vector<std::string> processes;
};

std::vector<HostPlan> plan_hosts(const Recipe& recipe) {
  std::vector<HostPlan> hosts;
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    hosts.push_back({.host = host.host, .slots = host.slots, .processes = {}});
  if (hosts.empty()) return hosts;
  const Placement placement = place_processes(recipe);
  for (const auto& [name, role] : recipe.roles)
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank)
      hosts[placement.host_of(name, rank)].processes.push_back(process_name(name, rank));
  return hosts;
}

struct Plan {
  std::vector<HostPlan> hosts;
  std::vector<RolePlan> roles;
  std::vector<LinkPlan> links;
  double tokens_per_step = 0;  // of all ranks, at most

  // The role with the most work per token and rank sets the pace when everything overlaps.
  const RolePlan& bottleneck() const {
    return *std::max_element(roles.begin(), roles.end(), [](const RolePlan& a, const RolePlan& b) {
      return a.flops_per_rank() < b.flops_per_rank();
    });
  }
};

Plan make_plan(const Recipe& recipe) {
  const recipes::RecipePlan own = recipes::recipe_type(recipe).plan(recipe);
  const int64_t tokens = recipes::micro_batch_tokens(recipe, own.sequences_per_row);
  Plan plan{.hosts = plan_hosts(recipe),
            .roles = {},
            .links = own.links,
            .tokens_per_step = recipes::tokens_per_step(recipe, own.sequences_per_row)};
  for (const auto& [name, role] : recipe.roles)
    plan.roles.push_back(plan_role(recipe, name, role, tokens, own.extra_forwards));
  return plan;
}

void print_roles(const Plan& plan) {
  std::printf("%-12s %6s %12s %12s %12s %12s %12s %12s %12s %12s  model\n", "role", "ranks",
              "parameters", "weights MiB", "grads MiB", "optim MiB", "kept MiB", "pushed MiB",
              "cache MiB", "peak MiB");
  for (const RolePlan& role : plan.roles)
    std::printf("%-12s %6lld %12lld %12.1f %12.1f %12.1f %12.1f %12.1f %12.1f %12.1f  %s\n",
                role.name.c_str(), static_cast<long long>(role.ranks),
                static_cast<long long>(role.parameters), mib(role.memory.parameters),
                mib(role.memory.gradients), mib(role.memory.optimizer),
                mib(role.memory.activations), mib(role.pushed_weights), mib(role.kv_cache),
                mib(role.peak()), role.model.c_str());
  std::printf(
      "MiB: of the rank that needs most; kept: activations between forward and backward; pushed: "
      "a copy of the weights that were pushed last, while the generator may be started again (with "
      "device: cuda in the host's memory, which is not in the peak), and in the generator of those "
      "that arrive; cache: generation.kv_cache; peak: of tensors in a step, at least (a serving "
      "role: its weights, and what a generator has besides)\n");
}

void print_text(const Plan& plan) {
  print_roles(plan);
  for (const HostPlan& host : plan.hosts) {
    std::printf("host %s: %zu of %lld slots:", host.host.c_str(), host.processes.size(),
                static_cast<long long>(host.slots));
    for (const std::string& process : host.processes)
      std::printf(" %s", process.c_str());
    std::printf("\n");
  }
  std::printf("tokens per step: at most %.0f\n", plan.tokens_per_step);
  for (const LinkPlan& link : plan.links)
    std::printf(
        "link %s -> student: %.0f bytes per target token, at most %.2f MiB per step; prefetch %lld "
        "holds at most %.2f MiB "
        "per student rank\n",
        link.role.c_str(), link.bytes_per_token, mib(link.bytes_per_step),
        static_cast<long long>(link.prefetch), mib(link.prefetch_bytes));
  std::printf("expected bottleneck: %s (%.3g FLOP per token and rank)\n",
              plan.bottleneck().name.c_str(), plan.bottleneck().flops_per_rank());
}

}  // namespace

std::string plan_json(const Recipe& recipe) {
  const Plan plan = make_plan(recipe);
  const auto of_role = [](const RolePlan& role) {
    return JsonLine()
        .add("role", std::string_view(role.name))
        .add("ranks", role.ranks)
        .add("parameters", role.parameters)
        .add("weight_bytes_per_rank", role.memory.parameters)
        .add("gradient_bytes_per_rank", role.memory.gradients)
        .add("optimizer_bytes_per_rank", role.memory.optimizer)
        .add("activation_bytes_per_rank", role.memory.activations)
        .add("pushed_weights_bytes_per_rank", role.pushed_weights)
        .add("kv_cache_bytes_per_rank", role.kv_cache)
        .add("peak_bytes_per_rank", role.peak())
        .str();
  };
  const auto of_link = [](const LinkPlan& link) {
    return JsonLine()
        .add("teacher", std::string_view(link.role))
        .add("bytes_per_target_token", link.bytes_per_token)
        .add("max_bytes_per_step", link.bytes_per_step)
        .add("max_prefetch_bytes_per_rank", link.prefetch_bytes)
        .str();
  };
  const auto of_host = [](const HostPlan& host) {
    return JsonLine()
        .add("host", std::string_view(host.host))
        .add("slots", host.slots)
        .raw("processes", json_array(host.processes, json_quote))
        .str();
  };

  return JsonLine()
      .raw("hosts", json_array(plan.hosts, of_host))
      .raw("roles", json_array(plan.roles, of_role))
      .raw("links", json_array(plan.links, of_link))
      .add("max_tokens_per_step", plan.tokens_per_step)
      .add("expected_bottleneck", std::string_view(plan.bottleneck().name))
      .str();
}

int run_plan(const RecipeCommand& command) {
  const Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  check_models(recipe);
  if (command.json)
    std::printf("%s\n", plan_json(recipe).c_str());
  else
    print_text(make_plan(recipe));
  return 0;
}

}  // namespace retort::launch
