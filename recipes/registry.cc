#include "recipes/type/registry.h"

#include <array>

#include "base/error.h"
#include "recipes/distill/setup.h"
#include "recipes/dpo/setup.h"
#include "recipes/grpo/setup.h"
#include "recipes/kto/setup.h"
#include "recipes/rejection_sampling/setup.h"
#include "recipes/reward_model/setup.h"
#include "recipes/sft/setup.h"

namespace retort::recipes {

std::span<const RecipeType* const> recipe_types() {
  static const std::array types{
      sft_type(),
      dpo_type(),
      kto_type(),
      distill_type(),
      rejection_sampling_type(),
      on_policy_distill_type(),
      grpo_type(),
      reward_model_type(),
  };
  return types;
}

const RecipeType& recipe_type(std::string_view name) {
  for (const RecipeType* type : recipe_types())
    if (type->name() == name) return *type;
  std::string names;
  for (const RecipeType* type : recipe_types())
    names += (names.empty() ? "" : " | ") + std::string(type->name());
  throw Error(ErrorCode::kInvalidArgument, "'" + std::string(name) + "' is not one of " + names);
}

std::vector<std::string_view> RecipeName::choices() {
  std::vector<std::string_view> names;
  for (const RecipeType* type : recipe_types())
    names.push_back(type->name());
  return names;
}

}  // namespace retort::recipes
