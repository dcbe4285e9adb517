// How samples become episodes, by the recipe and its chat template.
#pragma once

#include "base/units.h"
#include "models/text/chat_template.h"
#include "models/text/tool_calls.h"
#include "recipes/document/recipe.h"
#include "roles/episodes/episode.h"

namespace retort::recipes {

// The words in which the student calls tools: environment.tool_format, or those that the template
// teaches. kInvalidArgument where that is none of the known ones, or several.
models::ToolFormat tool_format(const EnvironmentOptions& environment,
                               const models::ChatTemplate& chat);

// How long an episode may wait for its environment in all of its attempts.
Duration longest_wait(const EnvironmentOptions& environment);

// Of a recipe with `environment`.
roles::EpisodeOptions episode_options(const Recipe& recipe, const models::ChatTemplate& chat);

}  // namespace retort::recipes
