#include "recipes/distill/row_filter.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/distill/byte_groups.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/two_tokenizers.h"

namespace retort::recipes {
namespace {

[[noreturn]] void refuse_row(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void require_teacher(const data::Sample& sample, const std::vector<TeacherOptions>& teachers) {
  const auto teaches = [&](const TeacherOptions& teacher) {
    return sample_matches(sample, teacher.when);
  };
  if (std::any_of(teachers.begin(), teachers.end(), teaches)) return;
  std::string fields;
  for (const auto& [name, value] : sample.fields)
    fields += (fields.empty() ? "" : ", ") + name + ": " + value;
  refuse_row("no teacher's `when` matches sample " + sample.origin + " with fields {" + fields +
             "}; add a teacher without `when` or fix the field");
}

void require_prompt(const data::Sample& sample, int64_t max_prompt) {
  const int64_t prompt = data::last_turn_begin(sample.is_target);
  if (prompt == 0)
    refuse_row("sample " + sample.origin +
               " has no tokens before its last targets, so there is no prompt to continue");
  if (prompt > max_prompt)
    refuse_row(sample.origin + ": the prompt has " + std::to_string(prompt) +
               " tokens, which leaves no room for generation.max_new_tokens within "
               "data.max_length; raise the one, lower the other, or leave the row out");
}

void require_same_bytes(const data::Sample& sample, const TwoTokenizers& both) {
  byte_groups({sample.input_ids, sample.is_target, both.student_bytes},
              {sample.reading.input_ids, sample.reading.is_target, both.teacher_bytes},
              sample.origin, /*student_is_cut=*/sample.truncated);
}

// What the teacher's tokens follow from, which a resumed run must have again.
std::string reader_text(const data::RowReader& reader) {
  return " reader=" + reader.tokenizer.vocabulary_fingerprint() +
         reader.tokenizer.processing_fingerprint() + reader.chat.fingerprint();
}

}  // namespace

data::SampleRule distill_row_rule(const Recipe& recipe, const models::ChatTemplate& chat) {
  const DistillOptions& distill = *recipe.distill;
  const bool draws = distill.lmbda > 0;
  const int64_t max_prompt = draws ? recipe.data.max_length - recipe.generation->max_new_tokens : 0;
  const auto reader = teacher_reader(recipe, chat);
  return {.require =
              [draws, max_prompt, teachers = distill.teachers,
               both = load_two_tokenizers(recipe)](const data::Sample& sample) {
                require_teacher(sample, teachers);
                if (draws) require_prompt(sample, max_prompt);
                if (both) require_same_bytes(sample, *both);
              },
          .shaping = (draws ? " max_prompt=" + std::to_string(max_prompt) : "") +
                     (reader ? reader_text(*reader) : ""),
          .reader = reader};
}

data::SampleRule distill_evaluation_rule(const Recipe& recipe, const models::ChatTemplate& chat) {
  const DistillOptions& distill = *recipe.distill;
  const bool asks = distill.eval_kd_loss && !distill.use_policy_gradient;
  if (!distill.crosses_tokenizers() || !asks) return {};
  return {.require = [both = load_two_tokenizers(recipe)](
                         const data::Sample& sample) { require_same_bytes(sample, *both); },
          .shaping = "",
          .reader = teacher_reader(recipe, chat)};
}

}  // namespace retort::recipes
