#include "recipes/distill/setup.h"

#include <algorithm>

#include "models/config.h"
#include "parallel/vocab_shard.h"
#include "recipes/distill/checks.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/on_policy.h"
#include "recipes/distill/self_check.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/role_connections.h"
#include "recipes/run/sample_run.h"
#include "roles/payload/payload.h"

namespace retort::recipes {
namespace {

// On-policy batches hold what the student of now draws, so nothing can be asked for ahead.
int64_t prefetched_steps(const DistillOptions& options) {
  return options.lmbda > 0 ? 0 : options.prefetch;
}

class DistillRun : public SampleRun {
 public:
  explicit DistillRun(RunContext& context)
      : SampleRun(context), options_(*context.recipe().distill) {}

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data) override {
    StepSource source = options_.lmbda == 0 ? std::move(data) : on_policy(std::move(data));
    if (options_.use_policy_gradient) return sampled_token_objective(std::move(source));
    return divergence_objective(std::move(source));
  }

 private:
  StepSource on_policy(StepSource data) {
    const Recipe& recipe = context().recipe();
    auto source = std::make_shared<OnPolicySource>(
        context().world, trainer(), std::move(data), make_rollout_worker(context(), trainer()),
        OnPolicySource::Options{
            .lmbda = options_.lmbda,
            .seed = static_cast<uint64_t>(recipe.seed),
            .max_length = recipe.data.max_length,
            .max_new_tokens = recipe.generation->max_new_tokens,
            .samples_folder = samples_folder(*recipe.generation, context().rank.run_folder)});
    return [source](int64_t step) { return (*source)(step); };
  }

  std::unique_ptr<Objective> sampled_token_objective(StepSource source) {
    const parallel::World& world = context().world;
    return std::make_unique<SampledTokenObjective>(
        std::move(source), connect(options_.teachers[0]),
        SampledTokenObjective::Options{.temperature = options_.temperature,
                                       .num_ids = num_drawn_ids(context()),
                                       .dp_rank = world.coordinate().dp,
                                       .dp_size = world.options().layout.dp,
                                       .asks = world.forms_loss()});
  }

  std::unique_ptr<Objective> divergence_objective(StepSource source) {
    const parallel::World& world = context().world;
    std::vector<TeacherRoute> routes;
    for (const TeacherOptions& teacher : options_.teachers)
      routes.push_back(
          {.client = connect(teacher), .weight = teacher.weight, .when = teacher.when});
    return std::make_unique<DistillObjective>(
        std::move(source), context().agent, std::move(routes),
        DistillObjective::Options{.divergence = options_.divergence(),
                                  .prefetch = prefetched_steps(options_),
                                  .dp_rank = world.coordinate().dp,
                                  .dp_size = world.options().layout.dp,
                                  .asks = world.forms_loss()});
  }

  // Null on a rank where no loss is formed.
  std::unique_ptr<roles::TeacherClient> connect(const TeacherOptions& teacher) {
    if (!context().world.forms_loss()) return nullptr;
    return connect_frozen_role(context(), teacher.role, spec_of(teacher.role),
                               {.tp = &context().world.tp(), .same_rows = &context().world.dp()});
  }

  // A teacher of ours gives the log-probability of a drawn token over the ids that are drawn, as
  // the student does.
  roles::PayloadSpec spec_of(const std::string& role) {
    roles::PayloadSpec spec = options_.payload_spec();
    const RoleOptions& teacher = context().recipe().roles.at(role);
    if (spec.kind != roles::PayloadKind::kTargetLogProbs || teacher.external) return spec;
    const int64_t ids = context().tokenizer.vocab_size();
    if (ids < models::read_model_config(teacher.model).vocab_size) spec.common_vocab = ids;
    return spec;
  }

  const DistillOptions& options_;
};

LinkPlan plan_teacher_link(const Recipe& recipe, const std::string& role) {
  const RoleOptions& teacher = recipe.roles.at(role);
  const models::ModelConfig config = models::read_model_config(teacher.model);
  const auto bytes_per_token = static_cast<double>(
      roles::payload_bytes_per_row(recipe.distill->payload_spec(), config.hidden_size,
                                   config.vocab_size, dtype_bytes(teacher.dtype)));
  LinkPlan link = plan_link(recipe, role, bytes_per_token, tokens_per_step(recipe, 1),
                            prefetched_steps(*recipe.distill));
  link.payload = recipe.distill->payload_spec();
  return link;
}

// Several teachers, or one of some rows, are a part for each where the vocabulary is split or on a
// device, and one with larger chunks elsewhere (losses/distill_shares.h). A teacher's head lies
// with each rank of the student, which holds its part of the vocabulary.
models::LossSizes plan_loss(const Recipe& recipe) {
  const DistillOptions& options = *recipe.distill;
  models::LossSizes loss;
  if (options.use_policy_gradient) {
    loss.kept_logits_bytes = losses::LogProbsOptions{}.kept_bytes;
    return loss;
  }
  loss.operator_buffers = 10;  // docs/losses.md
  const auto count = static_cast<int64_t>(options.teachers.size());
  const parallel::Layout& world = recipe.student().world;
  const bool shared = world.tp == 1 && world.device == parallel::Device::kCpu;
  if (!shared)
    loss.parts = count;
  else if (count > 1 || !options.teachers.front().when.empty())
    loss.logits_bytes = losses::kSharesChunkBytes;
  if (options.payload_spec().kind != roles::PayloadKind::kHiddenStates) return loss;

  for (const TeacherOptions& one : options.teachers) {
    const RoleOptions& role = recipe.roles.at(one.role);
    const models::ModelConfig config = models::read_model_config(role.model);
    const int64_t head =
        parallel::vocab_rows_per_rank(config.vocab_size, world.tp) * config.hidden_size;
    loss.teacher_heads += head * dtype_bytes(role.dtype);
    loss.widened_teacher_heads =
        shared ? loss.widened_teacher_heads + head : std::max(loss.widened_teacher_heads, head);
    loss.teacher_dtype_bytes = std::min(loss.teacher_dtype_bytes, dtype_bytes(role.dtype));
  }
  return loss;
}

class DistillType : public RecipeType {
 public:
  std::string_view name() const override { return "distill"; }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "distill", .least = "distill: {teachers: [{role: teacher}]}"}};
  }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    assume_teacher(recipe, places);
  }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    return teacher_roles(*recipe.distill);
  }

  // Log-probabilities of tokens are read in host memory.
  std::vector<std::string> device_roles(const Recipe& recipe) const override {
    if (recipe.distill->use_policy_gradient) return {};
    return teacher_roles(*recipe.distill);
  }

  bool generates(const Recipe& recipe) const override { return recipe.distill->lmbda > 0; }
  std::string no_generation(const Recipe&) const override {
    return "has no effect with distill.lmbda: 0";
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_distill(recipe, places);
  }

  RecipePlan plan(const Recipe& recipe) const override {
    RecipePlan plan;
    for (const TeacherOptions& teacher : recipe.distill->teachers)
      plan.links.push_back(plan_teacher_link(recipe, teacher.role));
    plan.loss = plan_loss(recipe);
    return plan;
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_distill_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<DistillRun>(context);
  }
};

class OnPolicyDistillType : public DistillType {
 public:
  std::string_view name() const override { return "on_policy_distill"; }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    DistillType::resolve(recipe, places);
    if (!recipe.distill) return;
    if (places.written({"distill", "lmbda"}) && recipe.distill->lmbda != 1.0)
      places.refuse({"distill", "lmbda"},
                    "on_policy_distill is distill with lmbda: 1.0; write recipe: distill for "
                    "another share of on-policy batches");
    recipe.distill->lmbda = 1.0;
  }
};

}  // namespace

const RecipeType* distill_type() {
  static const DistillType type;
  return &type;
}

const RecipeType* on_policy_distill_type() {
  static const OnPolicyDistillType type;
  return &type;
}

}  // namespace retort::recipes
