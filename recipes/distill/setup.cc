#include "recipes/distill/setup.h"

#include <algorithm>

#include "base/log.h"
#include "models/config/config.h"
#include "recipes/audit/audit.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/cached_teacher.h"
#include "recipes/distill/checks.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/on_policy.h"
#include "recipes/distill/plan.h"
#include "recipes/distill/row_filter.h"
#include "recipes/distill/self_check.h"
#include "recipes/distill/write_cache.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/rank/role_connections.h"
#include "recipes/run/rank/sample_run.h"
#include "roles/payload/payload.h"

namespace retort::recipes {
namespace {

class DistillRun : public SampleRun {
 public:
  explicit DistillRun(RunContext& context)
      : SampleRun(context, distill_row_rule(context.recipe())),
        options_(*context.recipe().distill) {}

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data) override {
    StepSource source = options_.lmbda == 0 ? std::move(data) : on_policy(std::move(data));
    if (options_.use_policy_gradient) return sampled_token_objective(std::move(source));
    return divergence_objective(std::move(source));
  }
  void add_to_evaluation(const std::vector<data::MicroBatch>& batches, MetricsRow& row) override {
    if (evaluated_) evaluated_->evaluate(trainer(), batches, context().world, row);
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
            .samples_folder = samples_folder(*recipe.generation, context().rank.run_folder),
            .tokenizer = context().tokenizer});
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
          {.client = answers_of(teacher), .weight = teacher.weight, .when = teacher.when});
    auto objective = std::make_unique<DistillObjective>(
        std::move(source), context().agent, std::move(routes),
        DistillObjective::Options{.divergence = options_.divergence(),
                                  .is_on_policy = on_policy_steps(context().recipe()),
                                  .prefetch = prefetched_steps(options_),
                                  .named_ids = payload_spec().names_ids() ? options_.loss_top_k : 0,
                                  .dp_rank = world.coordinate().dp,
                                  .dp_size = world.options().layout.dp,
                                  .asks = world.forms_loss()});
    // A cache has the answers of training rows alone.
    const bool can_be = std::ranges::none_of(options_.teachers, &TeacherOptions::is_cached);
    if (options_.eval_kd_loss && can_be) evaluated_ = objective.get();
    return objective;
  }

  std::unique_ptr<roles::FrozenAnswers> answers_of(const TeacherOptions& teacher) {
    if (teacher.is_cached()) return open_cache(teacher);
    return connect(teacher);
  }

  // Each dp rank looks for its share of the rows. Null on a rank where no loss is formed.
  std::unique_ptr<roles::FrozenAnswers> open_cache(const TeacherOptions& teacher) {
    const parallel::World& world = context().world;
    if (!world.forms_loss()) return nullptr;
    auto cached = std::make_unique<CachedTeacher>(
        CachedTeacher::Options{.folder = teacher.cache,
                               .spec = payload_spec(),
                               .student_vocab_rows = context().vocab_rows,
                               .tp_rank = world.coordinate().tp,
                               .tp_size = world.options().layout.tp},
        context().tokenizer);
    cached->check_rows(train(), teacher.when, world.coordinate().dp, world.options().layout.dp);
    const bool same = cached->manifest().packs == describe_packs(context().batches());
    RETORT_LOG(kInfo) << "the payloads of " << teacher.cache << " are of "
                      << (same ? "the packs of this run: its first epoch has their teacher's bits"
                               : "other packs than those of this run: they agree with their "
                                 "teacher's but for the last bits");
    return cached;
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
    roles::PayloadSpec spec = payload_spec();
    const RoleOptions& teacher = context().recipe().roles.at(role);
    if (spec.kind != roles::PayloadKind::kTargetLogProbs || teacher.external) return spec;
    const int64_t ids = context().tokenizer.vocab_size();
    if (ids < models::read_model_config(teacher.model).vocab_size) spec.common_vocab = ids;
    return spec;
  }

  roles::PayloadSpec payload_spec() { return options_.payload_spec(context().recipe().seed); }

  const DistillOptions& options_;
  DistillObjective* evaluated_ = nullptr;  // where there is a divergence to evaluate
};

class DistillType : public RecipeType {
 public:
  std::string_view name() const override { return "distill"; }

  std::vector<std::string> watched_metrics(const Recipe&) const override { return {"kd_loss"}; }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "distill", .least = "distill: {teachers: [{role: teacher}]}"}};
  }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    assume_teacher(recipe, places);
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    return teacher_roles(*recipe.distill);
  }

  // Log-probabilities of tokens are read in host memory, and draws are made there.
  std::vector<std::string> device_roles(const Recipe& recipe) const override {
    if (!roles::may_be_on_device(recipe.distill->payload)) return {};
    return teacher_roles(*recipe.distill);
  }

  bool generates(const Recipe& recipe) const override { return recipe.distill->lmbda > 0; }
  std::string no_generation(const Recipe&) const override {
    return "has no effect with distill.lmbda: 0";
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_distill(recipe, places);
  }

  std::vector<InputPath> inputs(const Recipe& recipe) const override {
    std::vector<InputPath> paths;
    for (size_t i = 0; i < recipe.distill->teachers.size(); ++i)
      paths.push_back({.key = "distill.teachers[" + std::to_string(i) + "].cache",
                       .path = recipe.distill->teachers[i].cache});
    return paths;
  }

  void check_inputs(const Recipe& recipe, const RecipePlaces& places) const override {
    check_hidden_states(recipe, places);
    check_loss_top_k(recipe, places);
    warn_of_more_ids(recipe, places);
    open_caches(recipe, places);
  }

  void check_cache(const Recipe& recipe) const override { check_cache_recipe(recipe); }
  void write_cache(const RankContext& context) const override { write_payload_cache(context); }

  RecipePlan plan(const Recipe& recipe) const override { return plan_distill(recipe); }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_samples(recipe, num_samples, distill_row_rule(recipe));
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
