#include "recipes/distill/vocabulary_check.h"

#include <cstdint>
#include <filesystem>
#include <string>

#include "models/config.h"
#include "models/text/tokenizer.h"

namespace retort::recipes {
namespace {

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::filesystem::is_regular_file(folder / "tokenizer.json") &&
         std::filesystem::is_regular_file(folder / "config.json");
}

}  // namespace

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
