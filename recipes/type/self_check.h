// `retort check`: is the signal right, on this recipe's models and data, before money is spent?
#pragma once

#include <cstdint>
#include <string>

#include "models/loaded_model.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// Collects the checks of one recipe. Prints one line for each and throws kMismatch at the first
// that fails.
class SelfCheck {
 public:
  explicit SelfCheck(models::LoadedModel student) : student_(std::move(student)) {}

  void check(const std::string& name, bool passed, const std::string& detail);
  // A line about what is no failure, but not what is usually wanted.
  void warn(const std::string& name, const std::string& detail);
  const models::LoadedModel& student() const { return student_; }

 private:
  models::LoadedModel student_;
};

// "1.23e-05", for the lines of a check.
std::string scientific(double value);

// Whether student and `role` number their tokens alike; how many ids both have rows for.
int64_t check_vocabularies(SelfCheck& check, const models::LoadedModel& other,
                           const std::string& role);

// Whether the role's model is an engine's, so that nothing of it can be computed here; a line says
// so.
bool is_elsewhere(SelfCheck& check, const Recipe& recipe, const std::string& role);

}  // namespace retort::recipes
