#include "recipes/type/self_check.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace retort::recipes {

void SelfCheck::check(const std::string& name, bool passed, const std::string& detail) {
  std::printf("%s %-28s %s\n", passed ? "ok  " : "FAIL", name.c_str(), detail.c_str());
  if (!passed) throw Error(ErrorCode::kMismatch, "check '" + name + "' failed: " + detail);
}

void SelfCheck::warn(const std::string& name, const std::string& detail) {
  std::printf("warn %-28s %s\n", name.c_str(), detail.c_str());
}

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

int64_t check_vocabularies(SelfCheck& check, const models::LoadedModel& other,
                           const std::string& role) {
  const models::LoadedModel& student = check.student();
  const int64_t known = std::min(student.tokenizer.vocab_size(), other.tokenizer.vocab_size());
  const std::string mine = student.tokenizer.vocabulary_fingerprint(known).substr(0, 16);
  const std::string theirs = other.tokenizer.vocabulary_fingerprint(known).substr(0, 16);
  check.check("vocabularies", mine == theirs,
              role + ": " + std::to_string(known) + " ids both know, student " + mine + ", " +
                  role + " " + theirs);
  return std::min({known, student.decoder.config().vocab_size, other.decoder.config().vocab_size});
}

bool is_elsewhere(SelfCheck& check, const Recipe& recipe, const std::string& role) {
  const auto& external = recipe.roles.at(role).external;
  if (external)
    check.check(role, true, "is computed by an engine elsewhere; retort probe asks that one");
  return external.has_value();
}

}  // namespace retort::recipes
