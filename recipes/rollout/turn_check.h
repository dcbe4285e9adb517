// `retort check` of episodes: how their turns become tokens, before a run depends on it.
#pragma once

#include <string>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/document/recipe.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// What stands between two turns of the student, a tool's answer, as ids and as text, and which of
// all these tokens have a loss. Errors: those of models::TurnSuffix.
std::string describe_turns(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer);

// Shows the words in which the student calls tools, and two turns. Nothing where the recipe has no
// environment, which is not started here.
void check_turns(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
