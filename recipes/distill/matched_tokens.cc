#include "recipes/distill/matched_tokens.h"

#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace retort::recipes {
namespace {

using IdsByBytes = std::unordered_map<std::string_view, int32_t>;

// The id of each text that a token stands for, special tokens apart.
IdsByBytes ids_by_bytes(const models::TokenBytes& tokens) {
  IdsByBytes ids;
  for (const bool fallbacks : {false, true}) {
    for (int32_t id = 0; id < tokens.size(); ++id) {
      const bool is_asked = !tokens.is_special(id) && tokens.is_fallback(id) == fallbacks;
      if (is_asked && !tokens.of(id).empty()) ids.try_emplace(tokens.of(id), id);
    }
  }
  return ids;
}

}  // namespace

MatchedTokens matched_tokens(const models::TokenBytes& student, const models::TokenBytes& teacher,
                             const models::Tokenizer& student_tokenizer,
                             const models::Tokenizer& teacher_tokenizer) {
  std::map<int32_t, int32_t> student_of;  // by the teacher's id
  std::set<int32_t> taken;                // of the student
  const auto match = [&](int32_t of_student, int32_t of_teacher) {
    if (student.of(of_student).empty() || teacher.of(of_teacher).empty()) return;
    if (taken.contains(of_student) || student_of.contains(of_teacher)) return;
    taken.insert(of_student);
    student_of.emplace(of_teacher, of_student);
  };

  // What a token is for comes before its bytes, should an eos be no special token.
  match(student_tokenizer.eos_id(), teacher_tokenizer.eos_id());
  match(student_tokenizer.bos_id(), teacher_tokenizer.bos_id());
  match(student_tokenizer.pad_id(), teacher_tokenizer.pad_id());
  const IdsByBytes student_ids = ids_by_bytes(student);
  for (const auto& [bytes, id] : ids_by_bytes(teacher)) {
    const auto same = student_ids.find(bytes);
    if (same != student_ids.end()) match(same->second, id);
  }

  MatchedTokens matched;
  for (const auto& [of_teacher, of_student] : student_of) {
    matched.student.push_back(of_student);
    matched.teacher.push_back(of_teacher);
  }
  return matched;
}

}  // namespace retort::recipes
