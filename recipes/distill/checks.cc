#include "recipes/distill/checks.h"

#include <algorithm>

#include "engines/traits.h"
#include "recipes/shared_checks.h"

namespace retort::recipes {
namespace {

constexpr const char* kUsualName = "teacher";

void check_teachers(const Recipe& recipe, const RecipePlaces& places) {
  const auto& teachers = recipe.distill->teachers;
  for (size_t i = 0; i < teachers.size(); ++i) {
    if (teachers[i].is_cached()) continue;
    const KeyPath path{"distill", "teachers", std::to_string(i), "role"};
    if (teachers[i].role == Recipe::kDrivingRole)
      places.refuse(path, "the student cannot be its own teacher");
    check_declared(recipe, places, path, teachers[i].role);
  }
}

bool takes_named_ids(const engines::EngineTraits& traits) { return traits.named_ids; }

// Ids are named for each position, which one engine alone takes; its own most probable ids beside
// them would be of another forward pass.
void check_engine_support(const Recipe& recipe, const RecipePlaces& places,
                          const std::string& role) {
  const DistillOptions& distill = *recipe.distill;
  const auto& external = recipe.roles.at(role).external;
  if (!external) return;
  const std::string takers = engines::engines_that(takes_named_ids);
  const std::string ours = "support: teacher with '" + role + "', or a teacher of ours (`model`)";
  if (distill.support == roles::Support::kUnion)
    places.refuse({"distill", "support"},
                  "union needs the teacher's own ids and the student's of one forward pass, which "
                  "no engine gives; use support: student with engine: " +
                      takers + ", " + ours);
  if (!takes_named_ids(engines::traits_of(external->engine)))
    places.refuse({"distill", "support"},
                  "student needs the teacher's log-probabilities at ids that the student names for "
                  "each position; of the engines " +
                      engines::programs_that(takes_named_ids) + " alone gives them, and " +
                      std::string(enum_name(external->engine)) +
                      " does not: use engine: " + takers + ", " + ours);
  if (distill.temperature != 1)
    places.refuse({"distill", "temperature"},
                  "an engine's log-probabilities at ids that the student names are those at "
                  "temperature 1; use temperature: 1, " +
                      ours);
}

// What the student names is new in each step.
void check_support(const Recipe& recipe, const RecipePlaces& places) {
  const DistillOptions& distill = *recipe.distill;
  if (distill.support == roles::Support::kTeacher) return;
  const std::string support(enum_name(distill.support));
  for (size_t i = 0; i < distill.teachers.size(); ++i) {
    const TeacherOptions& teacher = distill.teachers[i];
    if (teacher.is_cached())
      places.refuse({"distill", "teachers", std::to_string(i), "cache"},
                    "no cache holds the ids that the student names with support: " + support +
                        "; name a role, or use support: teacher");
    check_engine_support(recipe, places, teacher.role);
  }
}

// What a cache holds was said before the run, of rows that stay as they are.
void check_caches(const Recipe& recipe, const RecipePlaces& places) {
  const DistillOptions& distill = *recipe.distill;
  const auto cached = std::ranges::count_if(distill.teachers, &TeacherOptions::is_cached);
  for (size_t i = 0; i < distill.teachers.size(); ++i)
    if (distill.teachers[i].is_cached() && distill.lmbda > 0)
      places.refuse({"distill", "teachers", std::to_string(i), "cache"},
                    "what the student draws is in no cache: with lmbda above 0 a teacher must "
                    "answer; name a role");
  if (cached == 0) return;
  check_no_wrapping(recipe, places, "rows whose payloads are found whole in the cache");
  const bool alone = cached == static_cast<int64_t>(distill.teachers.size());
  if (alone && distill.prefetch != DistillOptions().prefetch)
    places.refuse({"distill", "prefetch"},
                  "has no effect where all teachers are caches, which nobody waits for; remove the "
                  "key");
}

// Its default holds wherever there is nothing to evaluate.
void check_evaluation(const Recipe& recipe, const RecipePlaces& places) {
  const DistillOptions& distill = *recipe.distill;
  if (distill.eval_kd_loss) return;
  const KeyPath path{"distill", "eval_kd_loss"};
  if (recipe.data.eval.empty())
    places.refuse(path, "has no effect without data.eval; remove the key");
  if (distill.use_policy_gradient)
    places.refuse(path,
                  "has no effect with use_policy_gradient, whose evaluations ask no teacher; "
                  "remove the key");
  if (std::ranges::any_of(distill.teachers, &TeacherOptions::is_cached))
    places.refuse(path,
                  "has no effect where a teacher is a cache, which has the training rows alone; "
                  "remove the key");
  if (recipe.train.metric_for_best_model == "eval_kd_loss")
    places.refuse(path,
                  "false leaves out the metric that train.metric_for_best_model names; remove "
                  "one of the two keys");
}

void check_on_policy(const Recipe& recipe, const RecipePlaces& places) {
  const DistillOptions& distill = *recipe.distill;
  const GenerationOptions& generation = *recipe.generation;
  if (distill.kd_ratio != 1.0 && distill.lmbda == 1.0)
    places.refuse({"distill", "kd_ratio"},
                  "must be 1 where all batches are on-policy: cross-entropy on the student's own "
                  "draws would teach it what it says already; with a smaller lmbda it holds for "
                  "the batches of the data");
  if (distill.prefetch != DistillOptions().prefetch)
    places.refuse({"distill", "prefetch"},
                  "has no effect with lmbda above 0: an on-policy batch is drawn with the weights "
                  "of its own step; remove the key");
  if (distill.use_policy_gradient &&
      (!generation.whole_distribution() || generation.sampling.temperature != distill.temperature))
    places.refuse({"distill", "use_policy_gradient"},
                  "is unbiased only for tokens drawn from the student's whole distribution: write "
                  "generation.temperature equal to distill.temperature, and leave top_p, top_k, "
                  "min_p, typical_p, min_new_tokens and the penalties alone");

  check_no_wrapping(recipe, places, "rows whose prompts the student continues");
  check_keeps_start(recipe, places, "the student continues prompts, which are never cut");
  check_no_tokenized_cache(recipe, places, "rows whose prompts the student continues");
  for (const std::string field : {"completion_only_loss", "assistant_only_loss"})
    if (!(field == "completion_only_loss" ? recipe.data.completion_only_loss
                                          : recipe.data.assistant_only_loss))
      places.refuse({"data", field},
                    "false makes a prompt's tokens targets, and on-policy batches continue what "
                    "stands before the last targets; remove the key");

  if (generation.num_generations != GenerationOptions().num_generations)
    places.refuse({"generation", "num_generations"},
                  "has no effect: on-policy distillation draws one completion for each prompt");
  check_draws_with_student_of_now(recipe, places);
}

// A resolved recipe holds every field, so one at its default is allowed; but whoever wrote it may
// expect it to act.
void warn_of_idle_fields(const DistillOptions& distill, const RecipePlaces& places) {
  const bool jsd = distill.loss_type == losses::DivergenceType::kJsd;
  if (jsd && (distill.beta < 0.05 || distill.beta > 0.95))
    places.warn({"distill", "beta"},
                "jsd is discontinuous at the ends: beta 0 and 1 are forward and reverse KL, and "
                "close to them the loss is far smaller");

  const bool top_k = distill.payload == roles::PayloadKind::kTopK;
  for (const std::string field : {"loss_top_k", "tail", "support"})
    if (!top_k && places.written({"distill", field}))
      places.warn({"distill", field}, "has no effect without payload: topk");
  const bool draws = distill.payload == roles::PayloadKind::kSampled;
  for (const std::string field : {"num_samples", "replacement"})
    if (!draws && places.written({"distill", field}))
      places.warn({"distill", field}, "has no effect without payload: sampled");
  if (!jsd && places.written({"distill", "beta"}))
    places.warn({"distill", "beta"}, "has no effect without loss_type: jsd");
}

}  // namespace

void assume_teacher(Recipe& recipe, const RecipePlaces& places) {
  if (recipe.roles.contains(kUsualName)) {
    if (!recipe.distill) recipe.distill.emplace();
    if (recipe.distill->teachers.empty()) recipe.distill->teachers.push_back({.role = kUsualName});
  }
  if (recipe.distill && recipe.distill->teachers.empty())
    places.refuse({"distill", "teachers"},
                  "must name at least one role: teachers: [{role: teacher}], or a cache");
}

std::vector<std::string> teacher_roles(const DistillOptions& distill) {
  std::vector<std::string> names;
  for (const TeacherOptions& teacher : distill.teachers)
    if (!teacher.is_cached() && std::find(names.begin(), names.end(), teacher.role) == names.end())
      names.push_back(teacher.role);
  return names;
}

void check_distill(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.distill->use_policy_gradient && recipe.distill->lmbda != 1.0)
    places.refuse({"distill", "use_policy_gradient"},
                  "needs the student's own samples in every batch; write recipe: "
                  "on_policy_distill, or lmbda: 1.0");
  check_teachers(recipe, places);
  check_support(recipe, places);
  check_caches(recipe, places);
  check_evaluation(recipe, places);
  if (recipe.generation) check_on_policy(recipe, places);
  warn_of_idle_fields(*recipe.distill, places);
}

}  // namespace retort::recipes
