#include "recipes/rules/references.h"

#include <string_view>
#include <utility>

#include "base/options.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {
namespace {

// The name that every block has for its reference unless told otherwise.
constexpr const char* kUsualReference = "reference";

}  // namespace

std::string nearest_role(const Roles& roles, const std::string& word) {
  std::vector<std::string_view> names;
  for (const auto& [name, role] : roles)
    if (name != word) names.push_back(name);
  const std::string nearest = nearest_name(word, names);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

void check_declared(const Roles& roles, const RecipePlaces& places, const KeyPath& path,
                    const std::string& role) {
  if (!roles.contains(role))
    places.refuse(path, "'" + role + "' is not declared under roles" + nearest_role(roles, role));
}

bool is_own_reference(const Roles& roles, const std::string& role) {
  return role == Recipe::kDrivingRole && roles.contains(role) &&
         roles.at(Recipe::kDrivingRole).lora.has_value();
}

std::vector<std::string> reference_roles(const Roles& roles, const std::string& role) {
  if (is_own_reference(roles, role)) return {};
  return {role};
}

void check_reference(const Roles& roles, const RecipePlaces& places, const KeyPath& path,
                     const std::string& role, bool needed, const std::string& why_not) {
  // The default may be written out, as in every saved recipe, even where a role of another use has
  // that name. A role that nothing uses is refused as such.
  if (!needed) {
    if (role != kUsualReference)
      places.refuse(path, "has no effect: " + why_not + "; remove the key");
    return;
  }
  if (is_own_reference(roles, role)) return;
  if (role == Recipe::kDrivingRole)
    places.refuse(path,
                  "the student cannot be its own reference: it moves; with roles.student.lora it "
                  "can, as it was before its training");
  check_declared(roles, places, path, role);
}

void check_own_reference(const Roles& roles, const RecipePlaces& places, const std::string& block,
                         const std::string& role, const std::string& cache, int64_t prefetch,
                         int64_t usual_prefetch) {
  if (!is_own_reference(roles, role)) return;
  const std::string why =
      "has no effect: what the student was before its training is asked when its batch is drawn, "
      "and no "
      "answer is kept; remove the key";
  if (!cache.empty()) places.refuse({block, "reference_cache"}, why);
  if (prefetch != usual_prefetch) places.refuse({block, "prefetch"}, why);
}

}  // namespace retort::recipes
