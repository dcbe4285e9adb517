#include "launch/commands/role_plan.h"

#include <algorithm>
#include <optional>

#include "launch/commands/adapter_size.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "parallel/vocab_shard.h"
#include "recipes/lora_checks.h"
#include "recipes/registry.h"
#include "recipes/run/student_model.h"
#include "roles/payload/payload.h"

namespace retort::launch {
namespace {

using recipes::dtype_bytes;
using recipes::Recipe;
using recipes::RecipePlan;
using recipes::RoleOptions;

// Whether the student keeps what it pushed last (roles/generator/pushed_weights.h).
bool keeps_pushed_weights(const Recipe& recipe) {
  return recipe.generation && recipe.roles.at(recipe.generation->role).restarts > 0;
}

// Bytes of an adapter that a rank of the student keeps, for each rank of a generator's replica, or
// that a rank of the generator is sent. Of a student's ranks the first has what is whole on all.
int64_t pushed_adapter(const Recipe& recipe, const models::ModelConfig& config,
                       const RoleOptions& role) {
  const AdapterSize size = adapter_size(config, recipes::student_adapter(recipe));
  const int64_t receivers = recipe.roles.at(recipe.generation->role).world.tp;
  const bool sends = &role == &recipe.student();
  const int64_t elements =
      sends ? (size.split / role.world.tp + receivers * size.whole) / role.world.pp
            : size.on_rank(role.world.tp);
  return elements * dtype_bytes(role.dtype);
}

// What its processes need here: nothing, but for a generator the student's weights, and once more
// while new ones arrive. What the engine needs where it runs is for the engine to say.
RolePlan plan_external(const Recipe& recipe, const std::string& name, const RoleOptions& role) {
  RolePlan plan{
      .name = name, .model = role.external->url.front(), .ranks = role.world.world_size()};
  if (!recipe.is_generator(name)) return plan;
  plan.parameters = models::read_model_config(recipe.student().model).num_parameters();
  plan.memory.parameters = plan.parameters * dtype_bytes(role.dtype);
  plan.pushed_weights = plan.memory.parameters;
  return plan;
}

// What a frozen role holds beside its weights: hidden states that wait for ids; and while it
// answers for a micro-batch, in the forward pass, or behind it the hidden states, those at the
// positions asked for, and the payload. Nothing of another role.
void add_answers(const Recipe& recipe, const RoleOptions& role, const models::ModelConfig& config,
                 const RecipePlan& own, RolePlan& plan) {
  const auto link = std::ranges::find(own.links, plan.name, &recipes::LinkPlan::role);
  if (link == own.links.end()) return;
  const int64_t bytes = dtype_bytes(role.dtype);
  const int64_t tokens = recipes::micro_batch_tokens(recipe, own.sequences_per_row);
  const models::TrainingSizes sizes{
      .layout = role.world,
      .tokens = tokens,
      .dtype_bytes = bytes,
      .sequences = tokens / std::max<int64_t>(1, recipe.data.max_length)};
  const int64_t payload =
      roles::payload_working_bytes(link->payload, sizes.tokens, config.hidden_size,
                                   parallel::vocab_rows_per_rank(config.vocab_size, role.world.tp),
                                   models::parse_dtype(std::string(enum_name(role.dtype))),
                                   role.world.device != parallel::Device::kCpu);
  plan.memory.answers = static_cast<int64_t>(link->kept_bytes);
  plan.memory.temporary = std::max(models::estimate_forward_memory(config, sizes),
                                   2 * sizes.tokens * config.hidden_size * bytes + payload);
}

RolePlan plan_role(const Recipe& recipe, const std::string& name, const RoleOptions& role,
                   const RecipePlan& own) {
  if (role.external) return plan_external(recipe, name, role);
  const models::ModelConfig config = recipes::role_config(recipe, name);
  RolePlan plan{.name = name,
                .model = role.model,
                .ranks = role.world.world_size(),
                .parameters = config.num_parameters()};
  plan.trains = name == Recipe::kDrivingRole;
  plan.measured = role.world.device == parallel::Device::kCpu;
  // A forward pass is 2 FLOP per parameter and token, a backward pass 4, or 2 where the weights get
  // no gradient of their own.
  const bool adapts = plan.trains && role.lora.has_value();
  const bool takes_adapter = recipe.is_generator(name) && recipes::pushes_adapter(recipe);
  std::optional<models::LoraConfig> adapter;
  if (adapts || takes_adapter) adapter = recipes::student_adapter(recipe);
  const int64_t forwards = 1 + own.extra_forwards + (plan.trains ? own.extra_student_forwards : 0);
  const int64_t passes = 2 * forwards + (plan.trains ? (adapts ? 2 : 4) : 0);
  plan.flops_per_token = static_cast<double>(passes) * static_cast<double>(plan.parameters);

  // The memory of the stage that needs most. Answers lie where they were asked for.
  models::LossSizes loss = own.loss;
  for (const recipes::LinkPlan& link : own.links)
    loss.answers += static_cast<int64_t>(link.prefetch_bytes);
  for (int64_t stage = 0; stage < role.world.pp; ++stage) {
    const models::TrainingMemory memory = models::estimate_training_memory(
        config, {.layout = role.world,
                 .stage = stage,
                 .tokens = recipes::micro_batch_tokens(recipe, own.sequences_per_row),
                 .micro_batches = recipe.train.gradient_accumulation_steps,
                 .dtype_bytes = dtype_bytes(role.dtype),
                 .float16 = role.dtype == recipes::FloatType::kFloat16,
                 .gradient_checkpointing = recipe.train.gradient_checkpointing,
                 .gradient_checkpointing_every = recipe.train.gradient_checkpointing_every,
                 .bucket_bytes = static_cast<int64_t>(recipe.train.grad_bucket_bytes.bytes),
                 .sequences = recipes::micro_batch_sequences(recipe, own),
                 .forks = own.forks,
                 .lora = adapter,
                 .first_adapter = plan.trains && recipes::keeps_first_adapter(recipe),
                 .loss = loss});
    const auto most = [&](const models::TrainingMemory& m) {
      return plan.trains ? m.peak() : m.parameters;
    };
    if (most(memory) > most(plan.memory)) plan.memory = memory;
  }

  const bool of_adapter = adapter && recipes::pushes_adapter(recipe);
  const int64_t pushed = of_adapter ? pushed_adapter(recipe, config, role) : plan.memory.parameters;

  if (!plan.trains) {
    plan.memory = {.parameters = plan.memory.parameters};
    add_answers(recipe, role, config, own, plan);
  }

  // A reward model computes one completion at a time, a judge as a generator does.
  const auto scoring = recipes::reward_roles(recipe);
  if (std::find(scoring.begin(), scoring.end(), name) != scoring.end()) {
    if (recipes::is_judge(recipe, name))
      plan.kv_cache = static_cast<int64_t>(recipe.generation->kv_cache.bytes);
    else
      plan.memory.temporary =
          models::estimate_forward_memory(config, {.layout = role.world,
                                                   .tokens = recipe.data.max_length,
                                                   .dtype_bytes = dtype_bytes(role.dtype)});
  }

  // A rank of the first replica sends its own part; a copy of a device's lies on the host.
  if (plan.trains && keeps_pushed_weights(recipe)) {
    plan.pushed_weights = pushed;
    plan.pushed_on_host = role.world.device != parallel::Device::kCpu;
  }

  // Merged weights are formed anew for each push.
  if (adapts && recipe.generation && !recipes::pushes_adapter(recipe))
    plan.pushed_weights += plan.memory.parameters;

  // A generator draws on with the old weights until all of the new ones are there. It adds an
  // adapter to a copy of what is adapted.
  if (recipe.is_generator(name)) {
    plan.pushed_weights = pushed;
    if (takes_adapter)
      plan.pushed_weights +=
          dtype_bytes(role.dtype) * adapted_elements(config, *adapter, role.world.tp);
    plan.kv_cache = static_cast<int64_t>(recipe.generation->kv_cache.bytes);
  }
  return plan;
}

}  // namespace

std::vector<RolePlan> plan_roles(const Recipe& recipe) {
  const RecipePlan own = recipes::recipe_type(recipe).plan(recipe);
  std::vector<RolePlan> plans;
  for (const auto& [name, role] : recipe.roles)
    plans.emplace_back(plan_role(recipe, name, role, own)).devices = plan_devices(recipe, name);
  return plans;
}

}  // namespace retort::launch
