#include "recipes/distill/input_checks.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "models/config/config.h"
#include "models/text/tokenizer.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/cached_teacher.h"

namespace retort::recipes {
namespace {

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::filesystem::is_regular_file(folder / "tokenizer.json") &&
         std::filesystem::is_regular_file(folder / "config.json");
}

}  // namespace

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
  refuse_above("the student (" + student + ")", student);
  for (const TeacherOptions& teacher : recipe.distill->teachers) {
    if (teacher.is_cached()) continue;
    const RoleOptions& role = recipe.roles.at(teacher.role);
    if (role.model.empty()) continue;  // an engine's is known when it is probed
    refuse_above("'" + teacher.role + "' (" + role.model + ")", role.model);
  }
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
