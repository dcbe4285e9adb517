#include "launch/ranks/serving_roles.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"

namespace retort::launch {

using recipes::RankContext;
using recipes::Recipe;

namespace {

bool serves_scores(const Recipe& recipe, const std::string& role) {
  const auto scoring = recipes::reward_roles(recipe);
  return std::find(scoring.begin(), scoring.end(), role) != scoring.end();
}

bool answers_turns(const Recipe& recipe, const std::string& role) {
  return recipe.is_environment(role);
}

bool generates(const Recipe& recipe, const std::string& role) { return recipe.is_generator(role); }

// Teachers and references.
bool is_frozen(const Recipe&, const std::string&) { return true; }

struct Makers {
  bool (*makes)(const Recipe& recipe, const std::string& role);
  ServingRank (*of_a_model)(const RankContext& context);
  ServingRank (*of_an_engine)(const RankContext& context);  // null: no engine plays it
};

// The first that makes a role is the one for it: a judge is a role of rewards, too.
constexpr Makers kMakers[] = {
    {answers_turns, make_environment_server, nullptr},
    {recipes::is_judge, make_judge_server, make_engine_judge},
    {serves_scores, make_score_server, make_engine_reward},
    {generates, make_generator, make_engine_generator},
    {is_frozen, make_teacher, make_engine_teacher},
};

}  // namespace

ServingRank make_serving_rank(const RankContext& context) {
  const auto* makers = std::ranges::find_if(
      kMakers, [&](const Makers& one) { return one.makes(context.recipe, context.role); });
  const bool external = context.role_options().external.has_value();
  RETORT_CHECK(makers != std::end(kMakers) && (!external || makers->of_an_engine))
      << "nobody makes the role " << context.role;
  return external ? makers->of_an_engine(context) : makers->of_a_model(context);
}

}  // namespace retort::launch
