#include "recipes/distill/checks.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "engines/contract/traits.h"
#include "models/config/config.h"
#include "models/text/tokenizer.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/cached_teacher.h"
#include "recipes/distill/matched_tokens.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/rules/data.h"
#include "recipes/rules/generation.h"
#include "recipes/rules/references.h"

namespace retort::recipes {
namespace {

constexpr const char* kUsualName = "teacher";

// Of fewer of the teacher's tokens than this share `gold` would compare next to nothing by name.
constexpr double kLeastMatched = 0.01;

void check_teachers(const std::vector<TeacherOptions>& teachers, const Roles& roles,
                    const RecipePlaces& places) {
  for (size_t i = 0; i < teachers.size(); ++i) {
    if (teachers[i].is_cached()) continue;
    const KeyPath path{"distill", "teachers", std::to_string(i), "role"};
    if (teachers[i].role == Recipe::kDrivingRole)
      places.refuse(path, "the student cannot be its own teacher");
    check_declared(roles, places, path, teachers[i].role);
  }
}

bool takes_named_ids(const engines::EngineTraits& traits) { return traits.named_ids; }

// Ids are named for each position, which one engine alone takes; its own most probable ids beside
// them would be of another forward pass.
void check_engine_support(const DistillOptions& distill, const Roles& roles,
                          const RecipePlaces& places, const std::string& role) {
  const auto& external = roles.at(role).external;
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

// The student names other ids in each step, so they cannot have been answered before the run.
void check_support(const DistillOptions& distill, const Roles& roles, const RecipePlaces& places) {
  if (distill.support == roles::Support::kTeacher) return;
  const std::string support(enum_name(distill.support));
  for (size_t i = 0; i < distill.teachers.size(); ++i) {
    const TeacherOptions& teacher = distill.teachers[i];
    if (teacher.is_cached())
      places.refuse({"distill", "teachers", std::to_string(i), "cache"},
                    "no cache holds the ids that the student names with support: " + support +
                        "; name a role, or use support: teacher");
    check_engine_support(distill, roles, places, teacher.role);
  }
}

// A cache holds what was said before the run, of rows that stay as they are.
void check_caches(const DistillOptions& distill, const data::DataOptions& data,
                  const RecipePlaces& places) {
  const auto cached = std::ranges::count_if(distill.teachers, &TeacherOptions::is_cached);
  for (size_t i = 0; i < distill.teachers.size(); ++i)
    if (distill.teachers[i].is_cached() && distill.lmbda > 0)
      places.refuse({"distill", "teachers", std::to_string(i), "cache"},
                    "what the student draws is in no cache: with lmbda above 0 a teacher must "
                    "answer; name a role");
  if (cached == 0) return;
  check_no_wrapping(data, places, "rows whose payloads are found whole in the cache");
  const bool alone = cached == static_cast<int64_t>(distill.teachers.size());
  if (alone && distill.prefetch != DistillOptions().prefetch)
    places.refuse({"distill", "prefetch"},
                  "has no effect where all teachers are caches, which nobody waits for; remove the "
                  "key");
}

// Only `false` is refused: the default holds wherever there is nothing to evaluate.
void check_evaluation(const DistillOptions& distill, const TrainOptions& train,
                      const data::DataOptions& data, const RecipePlaces& places) {
  if (distill.eval_kd_loss) return;
  const KeyPath path{"distill", "eval_kd_loss"};
  if (data.eval.empty()) places.refuse(path, "has no effect without data.eval; remove the key");
  if (distill.use_policy_gradient)
    places.refuse(path,
                  "has no effect with use_policy_gradient, whose evaluations ask no teacher; "
                  "remove the key");
  if (std::ranges::any_of(distill.teachers, &TeacherOptions::is_cached))
    places.refuse(path,
                  "has no effect where a teacher is a cache, which has the training rows alone; "
                  "remove the key");
  if (train.metric_for_best_model == "eval_kd_loss")
    places.refuse(path,
                  "false leaves out the metric that train.metric_for_best_model names; remove "
                  "one of the two keys");
}

void check_on_policy(const DistillOptions& distill, const GenerationOptions& generation,
                     const data::DataOptions& data, const RecipePlaces& places) {
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

  check_no_wrapping(data, places, "rows whose prompts the student continues");
  check_keeps_start(data, places, "the student continues prompts, which are never cut");
  check_no_tokenized_cache(data, places, "rows whose prompts the student continues");
  for (const std::string field : {"completion_only_loss", "assistant_only_loss"})
    if (!(field == "completion_only_loss" ? data.completion_only_loss : data.assistant_only_loss))
      places.refuse({"data", field},
                    "false makes a prompt's tokens targets, and on-policy batches continue what "
                    "stands before the last targets; remove the key");

  if (generation.num_generations != GenerationOptions().num_generations)
    places.refuse({"generation", "num_generations"},
                  "has no effect: on-policy distillation draws one completion for each prompt");
}

// Weights are pushed before each batch is drawn.
void check_weight_sync(const DistillOptions& distill, const WeightSyncOptions& weight_sync,
                       const RecipePlaces& places) {
  if (distill.max_staleness == 0) return check_draws_with_student_of_now(weight_sync, places);
  if (weight_sync.every_steps != 1)
    places.refuse({"weight_sync", "every_steps"},
                  "is for grpo; this recipe pushes weights before it draws a batch, and "
                  "distill.max_staleness says how old they may become");
}

// Rows are read twice, from one text: they must be whole on both sides.
void check_cross_tokenizer(const Recipe& recipe, const RecipePlaces& places) {
  const data::DataOptions& data = recipe.data;
  check_no_wrapping(data, places, "rows that a teacher with another tokenizer reads whole");
  check_keeps_start(data, places,
                    "a teacher with another tokenizer reads the row from its beginning");
  check_no_tokenized_cache(data, places, "rows as the teacher's tokenizer reads them, too");
  if (recipe.environment)
    places.refuse({"distill", "cross_tokenizer"},
                  "is not for episodes, whose turns only the student's template lays out; use a "
                  "teacher with the student's tokenizer");
}

// Episodes are drawn by number, and are as long as they come.
void check_episodes(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.train.tokens_per_batch)
    places.refuse({"train", "tokens_per_batch"},
                  "is not for episodes, whose lengths are not known before they are drawn; use "
                  "per_device_train_batch_size, the episodes of a micro-batch");
  if (recipe.train.batch_size_rampup_steps > 0)
    places.refuse({"train", "batch_size_rampup_steps"},
                  "with an environment batches are what the generator drew; remove it");
  check_no_packing(recipe.data, places, "episodes");
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

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::filesystem::is_regular_file(folder / "tokenizer.json") &&
         std::filesystem::is_regular_file(folder / "config.json");
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
  const DistillOptions& distill = *recipe.distill;
  if (distill.use_policy_gradient && distill.lmbda != 1.0)
    places.refuse({"distill", "use_policy_gradient"},
                  "needs the student's own samples in every batch; write recipe: "
                  "on_policy_distill, or lmbda: 1.0");
  check_teachers(distill.teachers, recipe.roles, places);
  check_support(distill, recipe.roles, places);
  check_caches(distill, recipe.data, places);
  check_evaluation(distill, recipe.train, recipe.data, places);
  if (recipe.generation) {
    check_on_policy(distill, *recipe.generation, recipe.data, places);
    check_weight_sync(distill, *recipe.weight_sync, places);
  }
  if (recipe.environment) check_episodes(recipe, places);
  if (recipe.environment && distill.max_staleness > 0)
    places.refuse(
        {"distill", "max_staleness"},
        "is not for episodes, which this recipe draws with the student of now; remove it");
  if (distill.max_staleness > 0 && distill.lmbda == 0)
    places.refuse({"distill", "max_staleness"},
                  "has no effect without on-policy batches (recipe: on_policy_distill, or lmbda "
                  "above 0): remove it or change that");
  if (distill.crosses_tokenizers()) check_cross_tokenizer(recipe, places);
  warn_of_idle_fields(distill, places);
}

void check_hidden_states(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.distill->payload != roles::PayloadKind::kHiddenStates) return;
  for (const TeacherOptions& teacher : recipe.distill->teachers) {
    if (teacher.is_cached()) continue;
    const RoleOptions& role = recipe.roles.at(teacher.role);
    if (role.external || models::read_model_config(role.model).final_logit_softcapping == 0)
      continue;
    places.refuse({"roles", teacher.role, "model"},
                  "the logits of " + role.model +
                      " are capped (final_logit_softcapping in its config.json), which payload: "
                      "hidden_states does not carry; use payload: topk, full or sampled");
  }
}

void check_loss_top_k(const Recipe& recipe, const RecipePlaces& places) {
  if (recipe.distill->payload != roles::PayloadKind::kTopK) return;
  const int64_t asked = recipe.distill->loss_top_k;
  if (asked == DistillOptions().loss_top_k) return;  // all ids of a toy's vocabulary
  const auto refuse_above = [&](const std::string& whose, const std::string& folder) {
    if (!std::filesystem::is_regular_file(std::filesystem::path(folder) / "config.json")) return;
    const int64_t rows = models::read_model_config(folder).vocab_size;
    if (asked <= rows) return;
    places.refuse({"distill", "loss_top_k"},
                  std::to_string(asked) + " is more than the vocabulary of " + whose + " has (" +
                      std::to_string(rows) +
                      "); write at most that, or payload: full, which sends all of it");
  };
  const std::string& student = recipe.student().model;
  if (!recipe.distill->crosses_tokenizers()) refuse_above("the student (" + student + ")", student);
  for (const TeacherOptions& teacher : recipe.distill->teachers) {
    if (teacher.is_cached()) continue;
    const RoleOptions& role = recipe.roles.at(teacher.role);
    if (role.model.empty()) continue;  // an engine's is known when it is probed
    refuse_above("'" + teacher.role + "' (" + role.model + ")", role.model);
  }
}

void check_two_tokenizers(const Recipe& recipe, const RecipePlaces& places) {
  const KeyPath key{"distill", "cross_tokenizer"};
  const CrossTokenizer way = recipe.distill->cross_tokenizer;
  std::shared_ptr<const TwoTokenizers> both;
  try {
    both = load_two_tokenizers(recipe);
  } catch (const Error& error) {
    places.refuse(key, error.message(), error.code());
  }
  if (way != CrossTokenizer::kSpans &&
      both->student.vocabulary_fingerprint() == both->teacher.vocabulary_fingerprint())
    places.warn(key,
                "student and teacher have the same tokens: none compares their distributions id "
                "by id, which says more");
  if (way != CrossTokenizer::kGold) return;

  const auto matched =
      matched_tokens(both->student_bytes, both->teacher_bytes, both->student, both->teacher);
  const auto known = static_cast<double>(both->teacher_bytes.size());
  if (static_cast<double>(matched.teacher.size()) < kLeastMatched * known)
    places.refuse(key, "gold: the vocabularies share " + std::to_string(matched.teacher.size()) +
                           " tokens of " + std::to_string(both->teacher_bytes.size()) +
                           "; uld or spans would do");
}

void open_caches(const Recipe& recipe, const RecipePlaces& places) {
  const auto& teachers = recipe.distill->teachers;
  if (std::ranges::none_of(teachers, &TeacherOptions::is_cached)) return;
  const std::string& model = recipe.student().model;
  const models::Tokenizer tokenizer = models::Tokenizer::load(model);
  const int64_t vocab_rows = models::read_model_config(model).vocab_size;
  for (size_t i = 0; i < teachers.size(); ++i) {
    const std::string& folder = teachers[i].cache;
    if (folder.empty()) continue;
    try {
      const CacheManifest manifest = read_manifest(folder);
      check_cached_payload(manifest, recipe.distill->payload_spec(recipe.seed),
                           {.folder = folder, .tokenizer = tokenizer, .vocab_rows = vocab_rows});
      check_cached_teacher(manifest, folder);
    } catch (const Error& error) {
      places.refuse(
          {"distill", "teachers", std::to_string(i), "cache"}, error.message(),
          error.code() == ErrorCode::kMismatch ? ErrorCode::kInvalidArgument : error.code());
    }
  }
}

void warn_of_more_ids(const Recipe& recipe, const RecipePlaces& places) {
  const std::string& student = recipe.student().model;
  for (const TeacherOptions& teacher : recipe.distill->teachers) {
    if (teacher.is_cached()) continue;
    const std::string& folder = recipe.roles.at(teacher.role).model;
    if (!has_tokenizer(student) || !has_tokenizer(folder)) continue;
    if (models::read_model_config(folder).vocab_size <=
        models::read_model_config(student).vocab_size)
      continue;
    const int64_t known = models::Tokenizer::load(student).vocab_size();
    const int64_t named = models::Tokenizer::load(folder).vocab_size();
    if (named <= known) continue;
    places.warn({"roles", teacher.role},
                "the teacher's tokenizer has " + std::to_string(named) + " ids, the student's " +
                    std::to_string(known) +
                    "; what the teacher puts on the others is masked, and the run ends where that "
                    "is more than a thousandth: give the student its tokens (retort vocab add), or "
                    "take a teacher with the student's tokenizer");
  }
}

}  // namespace retort::recipes
