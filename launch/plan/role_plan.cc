#include "launch/plan/role_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/plan/adapter_size.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "parallel/vocab_shard.h"
#include "recipes/roles/adapter.h"
#include "recipes/run/inputs/student_model.h"
#include "recipes/type/registry.h"
#include "roles/payload/payload.h"

namespace retort::launch {
namespace {

using recipes::dtype_bytes;
using recipes::Recipe;
using recipes::RecipePlan;
using recipes::RoleOptions;

// By rule of thumb: a context of half a gigabyte, workspaces of cuBLAS, channels of NCCL.
constexpr int64_t kBesideTensors = int64_t{819} << 20;

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

// The processes of an external role need nothing here; those of a generator need the student's
// weights, and once more while new ones arrive. What the engine needs where it runs is for the
// engine to say.
RolePlan plan_external(const Recipe& recipe, const std::string& name, const RoleOptions& role) {
  RolePlan plan{
      .name = name, .model = role.external->url.front(), .ranks = role.world.world_size()};
  if (!recipe.is_generator(name)) return plan;
  plan.parameters = models::read_model_config(recipe.student().model).num_parameters();
  plan.memory.parameters = plan.parameters * dtype_bytes(role.dtype);
  plan.pushed_weights = plan.memory.parameters;
  return plan;
}

// A program or a service: what it needs is for whoever wrote it to say.
RolePlan plan_environment(const std::string& name, const RoleOptions& role) {
  const environments::EnvironmentOptions& environment = *role.environment;
  return {.name = name,
          .model = environment.url.empty() ? environment.command.front() : environment.url,
          .ranks = role.world.world_size(),
          .memory = {}};
}

// Plans one role that is a model of ours.
class RolePlanner {
 public:
  RolePlanner(const Recipe& recipe, const RecipePlan& own, const std::string& name);

  RolePlan plan() const;

 private:
  double flops_per_token() const;
  // The memory of the stage that needs most, while the role computes a step as the student does.
  models::TrainingMemory memory() const;
  models::TrainingSizes sizes_of(int64_t stage) const;
  // What a frozen role needs to answer; nothing for one that does something else.
  void add_answers(RolePlan& plan) const;
  void add_scores(RolePlan& plan) const;
  // The copies of weights that the student pushes to a generator, on both sides.
  void add_pushed_weights(RolePlan& plan) const;

  const Recipe& recipe_;
  const RecipePlan& own_;
  const std::string& name_;
  const RoleOptions& role_;
  const models::ModelConfig config_;
  const bool trains_;
  const bool adapts_;         // trains an adapter alone
  const bool takes_adapter_;  // is a generator that an adapter is pushed to
  std::optional<models::LoraConfig> adapter_;
};

RolePlanner::RolePlanner(const Recipe& recipe, const RecipePlan& own, const std::string& name)
    : recipe_(recipe),
      own_(own),
      name_(name),
      role_(recipe.roles.at(name)),
      config_(recipes::role_config(recipe, name)),
      trains_(name == Recipe::kDrivingRole),
      adapts_(trains_ && role_.lora.has_value()),
      takes_adapter_(recipe.is_generator(name) && recipes::pushes_adapter(recipe)) {
  if (adapts_ || takes_adapter_) adapter_ = recipes::student_adapter(recipe);
}

RolePlan RolePlanner::plan() const {
  RolePlan plan{.name = name_,
                .model = role_.model,
                .ranks = role_.world.world_size(),
                .parameters = config_.num_parameters(),
                .memory = memory()};
  plan.trains = trains_;
  plan.measured = role_.world.device == parallel::Device::kCpu;
  if (!plan.measured) plan.beside_tensors = kBesideTensors;
  plan.flops_per_token = flops_per_token();
  if (!trains_) {
    plan.memory = {.parameters = plan.memory.parameters};
    add_answers(plan);
  }
  add_scores(plan);
  add_pushed_weights(plan);
  return plan;
}

// A forward pass is 2 FLOP per parameter and token, a backward pass 4, or 2 where the weights get
// no gradient of their own.
double RolePlanner::flops_per_token() const {
  const int64_t of_student = trains_ ? own_.extra_student_forwards : 0;
  const int64_t forwards = 1 + own_.extra_forwards + of_student;
  const int64_t backward = adapts_ ? 2 : 4;
  const int64_t passes = 2 * forwards + (trains_ ? backward : 0);
  return static_cast<double>(passes) * static_cast<double>(config_.num_parameters());
}

models::TrainingMemory RolePlanner::memory() const {
  const auto most = [&](const models::TrainingMemory& memory) {
    return trains_ ? memory.peak() : memory.parameters;
  };
  models::TrainingMemory largest;
  for (int64_t stage = 0; stage < role_.world.pp; ++stage) {
    const models::TrainingMemory memory =
        models::estimate_training_memory(config_, sizes_of(stage));
    if (most(memory) > most(largest)) largest = memory;
  }
  return largest;
}

models::TrainingSizes RolePlanner::sizes_of(int64_t stage) const {
  // Answers lie where they were asked for.
  models::LossSizes loss = own_.loss;
  for (const recipes::LinkPlan& link : own_.links)
    loss.answers += static_cast<int64_t>(link.prefetch_bytes);
  return {.layout = role_.world,
          .stage = stage,
          .tokens = recipes::micro_batch_tokens(recipe_, own_.sequences_per_row),
          .micro_batches = recipe_.train.gradient_accumulation_steps,
          .dtype_bytes = dtype_bytes(role_.dtype),
          .float16 = role_.dtype == recipes::FloatType::kFloat16,
          .gradient_checkpointing = recipe_.train.gradient_checkpointing,
          .gradient_checkpointing_every = recipe_.train.gradient_checkpointing_every,
          .bucket_bytes = static_cast<int64_t>(recipe_.train.grad_bucket_bytes.bytes),
          .sequences = recipes::micro_batch_sequences(recipe_, own_),
          .forks = own_.forks,
          .lora = adapter_,
          .first_adapter = trains_ && recipes::keeps_first_adapter(recipe_),
          .loss = loss};
}

// A role that answers holds, beside its weights, hidden states that wait for ids. While it answers
// for a micro-batch it holds what the forward pass takes, or behind that the hidden states, those
// at the positions asked for, and the payload. It holds nothing of another role.
void RolePlanner::add_answers(RolePlan& plan) const {
  const auto link = std::ranges::find(own_.links, name_, &recipes::LinkPlan::role);
  if (link == own_.links.end()) return;
  const int64_t bytes = dtype_bytes(role_.dtype);
  const int64_t tokens = recipes::micro_batch_tokens(recipe_, own_.sequences_per_row);
  const models::TrainingSizes sizes{
      .layout = role_.world,
      .tokens = tokens,
      .dtype_bytes = bytes,
      .sequences = tokens / std::max<int64_t>(1, recipe_.data.max_length)};
  const int64_t payload = roles::payload_working_bytes(
      link->payload, sizes.tokens, config_.hidden_size,
      parallel::vocab_rows_per_rank(config_.vocab_size, role_.world.tp),
      models::parse_dtype(std::string(enum_name(role_.dtype))),
      role_.world.device != parallel::Device::kCpu);
  plan.memory.answers = static_cast<int64_t>(link->kept_bytes);
  plan.memory.temporary = std::max(models::estimate_forward_memory(config_, sizes),
                                   2 * sizes.tokens * config_.hidden_size * bytes + payload);
}

// A reward model computes one completion at a time, a judge as a generator does.
void RolePlanner::add_scores(RolePlan& plan) const {
  const auto scoring = recipes::reward_roles(recipe_);
  if (std::ranges::find(scoring, name_) == scoring.end()) return;
  if (recipes::is_judge(recipe_, name_))
    plan.kv_cache = static_cast<int64_t>(recipe_.generation->kv_cache.bytes);
  else
    plan.memory.temporary =
        models::estimate_forward_memory(config_, {.layout = role_.world,
                                                  .tokens = recipe_.data.max_length,
                                                  .dtype_bytes = dtype_bytes(role_.dtype)});
}

void RolePlanner::add_pushed_weights(RolePlan& plan) const {
  const bool of_adapter = adapter_ && recipes::pushes_adapter(recipe_);
  const int64_t pushed =
      of_adapter ? pushed_adapter(recipe_, config_, role_) : plan.memory.parameters;

  // A rank of the first replica sends its own part; a copy of a device's lies on the host.
  if (trains_ && keeps_pushed_weights(recipe_)) {
    plan.pushed_weights = pushed;
    plan.pushed_on_host = role_.world.device != parallel::Device::kCpu;
  }

  // Merged weights are formed anew for each push.
  if (adapts_ && recipe_.generation && !recipes::pushes_adapter(recipe_))
    plan.pushed_weights += plan.memory.parameters;

  // A generator draws on with the old weights until all of the new ones are there. It adds an
  // adapter to a copy of what is adapted.
  if (recipe_.is_generator(name_)) {
    plan.pushed_weights = pushed;
    if (takes_adapter_)
      plan.pushed_weights +=
          dtype_bytes(role_.dtype) * adapted_elements(config_, *adapter_, role_.world.tp);
    plan.kv_cache = static_cast<int64_t>(recipe_.generation->kv_cache.bytes);
  }
}

}  // namespace

std::vector<RolePlan> plan_roles(const Recipe& recipe) {
  const RecipePlan own = recipes::recipe_type(recipe).plan(recipe);
  std::vector<RolePlan> plans;
  for (const auto& [name, role] : recipe.roles) {
    std::vector<DevicePlan> devices = plan_devices(recipe, name);
    plans.push_back(role.external      ? plan_external(recipe, name, role)
                    : role.environment ? plan_environment(name, role)
                                       : RolePlanner(recipe, own, name).plan());
    plans.back().devices = std::move(devices);
  }
  return plans;
}

}  // namespace retort::launch
