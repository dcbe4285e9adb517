#include "recipes/distill/teaching.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "models/config/config.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/cached_teacher.h"
#include "recipes/distill/cross_objective.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/on_policy.h"
#include "recipes/distill/plan.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/run/rank/role_connections.h"
#include "roles/payload/payload.h"

namespace retort::recipes {
namespace {

class TeachingMaker {
 public:
  TeachingMaker(RunContext& context, const data::Dataset* cached_rows, const DrawAhead& draws)
      : context_(context),
        options_(*context.recipe().distill),
        spec_(options_.payload_spec(context.recipe().seed)),
        cached_rows_(cached_rows),
        draws_(draws),
        both_(load_two_tokenizers(context.recipe())) {}

  Teaching sampled_tokens(StepSource source) {
    const parallel::World& world = context_.world;
    auto objective = std::make_unique<SampledTokenObjective>(
        std::move(source), connect(options_.teachers[0]),
        SampledTokenObjective::Options{
            .temperature = options_.temperature,
            .num_ids = num_drawn_ids(context_),
            .dp_rank = world.coordinate().dp,
            .dp_size = world.options().layout.dp,
            .asks = world.forms_loss(),
            .both = both_,
            .draws = draws_,
            .sampling_correction = options_.sampling_correction,
            .importance_sampling_cap = options_.importance_sampling_cap});
    return {.objective = std::move(objective), .evaluate = {}};
  }

  Teaching other_tokenizer(StepSource source) {
    const parallel::World& world = context_.world;
    auto objective = std::make_unique<CrossTokenizerObjective>(
        std::move(source), context_.agent, connect(options_.teachers[0]), both_,
        CrossTokenizerObjective::Options{.uld = uld_options(options_, *both_),
                                         .kd_ratio = options_.kd_ratio,
                                         .is_on_policy = on_policy_steps(context_.recipe()),
                                         .prefetch = prefetched_steps(options_),
                                         .draws = draws_of_batches(),
                                         .dp_rank = world.coordinate().dp,
                                         .dp_size = world.options().layout.dp,
                                         .asks = world.forms_loss()});
    return with_evaluation(std::move(objective), options_.eval_kd_loss);
  }

  Teaching divergence(StepSource source) {
    const parallel::World& world = context_.world;
    std::vector<TeacherRoute> routes;
    for (const TeacherOptions& teacher : options_.teachers)
      routes.push_back(
          {.client = answers_of(teacher), .weight = teacher.weight, .when = teacher.when});
    auto objective = std::make_unique<DistillObjective>(
        std::move(source), context_.agent, std::move(routes),
        DistillObjective::Options{.divergence = options_.divergence(),
                                  .is_on_policy = on_policy_steps(context_.recipe()),
                                  .prefetch = prefetched_steps(options_),
                                  .draws = draws_of_batches(),
                                  .named_ids = spec_.names_ids() ? options_.loss_top_k : 0,
                                  .dp_rank = world.coordinate().dp,
                                  .dp_size = world.options().layout.dp,
                                  .asks = world.forms_loss()});

    // A cache has the answers of training rows alone.
    const bool can_be = std::ranges::none_of(options_.teachers, &TeacherOptions::is_cached);
    return with_evaluation(std::move(objective), options_.eval_kd_loss && can_be);
  }

 private:
  // Nothing where the batches are the data's.
  std::optional<DrawAhead> draws_of_batches() const {
    return options_.lmbda > 0 ? std::optional(draws_) : std::nullopt;
  }

  template <class Objective>
  static Teaching with_evaluation(std::unique_ptr<Objective> objective, bool evaluates) {
    Teaching::Evaluate evaluate;
    if (evaluates)
      evaluate = [asked = objective.get()](const roles::Trainer& student,
                                           const std::vector<data::MicroBatch>& batches,
                                           parallel::World& world, MetricsRow& row) {
        asked->evaluate(student, batches, world, row);
      };
    return {.objective = std::move(objective), .evaluate = std::move(evaluate)};
  }

  std::unique_ptr<roles::FrozenAnswers> answers_of(const TeacherOptions& teacher) {
    if (teacher.is_cached()) return open_cache(teacher);
    return connect(teacher);
  }

  // Each dp rank looks for its share of the rows. Null on a rank where no loss is formed.
  std::unique_ptr<roles::FrozenAnswers> open_cache(const TeacherOptions& teacher) {
    const parallel::World& world = context_.world;
    RETORT_CHECK(cached_rows_) << "a cache for rows that are not there before they are drawn";
    if (!world.forms_loss()) return nullptr;
    auto cached = std::make_unique<CachedTeacher>(
        CachedTeacher::Options{.folder = teacher.cache,
                               .spec = spec_,
                               .student_vocab_rows = context_.vocab_rows,
                               .tp_rank = world.coordinate().tp,
                               .tp_size = world.options().layout.tp},
        context_.tokenizer);
    cached->check_rows(*cached_rows_, teacher.when, world.coordinate().dp,
                       world.options().layout.dp);
    const bool same = cached->manifest().packs == describe_packs(context_.batches());
    RETORT_LOG(kInfo) << "the payloads of " << teacher.cache << " are of "
                      << (same ? "the packs of this run: its first epoch has their teacher's bits"
                               : "other packs than those of this run: they agree with their "
                                 "teacher's but for the last bits");
    return cached;
  }

  // Null on a rank where no loss is formed.
  std::unique_ptr<roles::TeacherClient> connect(const TeacherOptions& teacher) {
    if (!context_.world.forms_loss()) return nullptr;
    FrozenRoleOptions options{.tp = &context_.world.tp(), .same_rows = &context_.world.dp()};
    if (both_) {
      const std::string& folder = context_.recipe().roles.at(teacher.role).model;
      options.tokenizer = &both_->teacher;
      options.vocab_rows = models::read_model_config(folder).vocab_size;
    }
    return connect_frozen_role(context_, teacher.role, spec_of(teacher.role), options);
  }

  // A teacher of ours gives the log-probability of a drawn token over the ids that are drawn, as
  // the student does.
  roles::PayloadSpec spec_of(const std::string& role) const {
    roles::PayloadSpec spec = spec_;
    const RoleOptions& teacher = context_.recipe().roles.at(role);
    if (spec.kind != roles::PayloadKind::kTargetLogProbs || teacher.external) return spec;
    const int64_t ids = (both_ ? both_->teacher : context_.tokenizer).vocab_size();
    if (ids < models::read_model_config(teacher.model).vocab_size) spec.common_vocab = ids;
    return spec;
  }

  RunContext& context_;
  const DistillOptions& options_;
  const roles::PayloadSpec spec_;
  const data::Dataset* const cached_rows_;
  const DrawAhead draws_;
  const std::shared_ptr<const TwoTokenizers> both_;  // null: the student's tokenizer is theirs
};

}  // namespace

Teaching make_teaching(RunContext& context, StepSource source, const data::Dataset* cached_rows,
                       const DrawAhead& draws) {
  TeachingMaker maker(context, cached_rows, draws);
  const DistillOptions& options = *context.recipe().distill;
  if (options.use_policy_gradient) return maker.sampled_tokens(std::move(source));
  return options.crosses_tokenizers() ? maker.other_tokenizer(std::move(source))
                                      : maker.divergence(std::move(source));
}

}  // namespace retort::recipes
