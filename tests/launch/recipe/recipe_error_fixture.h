// A complaint about a recipe: place, what, what was expected, nearest known name.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {

struct RecipeErrorCase {
  const char* name;
  const std::string* base;
  std::string from, to;  // one replacement in the base recipe
  std::vector<std::string> overrides;
  std::vector<std::string> expected;  // the message starts with the first and contains the others
};

inline std::ostream& operator<<(std::ostream& out, const RecipeErrorCase& c) {
  return out << c.name;
}
inline std::string name_of(const ::testing::TestParamInfo<RecipeErrorCase>& info) {
  return info.param.name;
}

// Its one test is in recipe_error_test.cc; other files instantiate it with their cases.
class RecipeErrorTest : public RecipeTest, public ::testing::WithParamInterface<RecipeErrorCase> {};

}  // namespace retort::test
