// Which rows a distillation can use.
#pragma once

#include "models/text/chat_template.h"
#include "recipes/data/dataset.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// A row is bad that no teacher's `when` matches and, with lmbda above 0, one whose prompt the
// student cannot continue within data.max_length: also for off-policy steps, as a row does not know
// its step. With distill.cross_tokenizer the teacher reads the rows too, and one whose bytes it
// reads otherwise is bad. `chat`: the student's.
data::SampleRule distill_row_rule(const Recipe& recipe, const models::ChatTemplate& chat);
// Of the rows of an evaluation: the teacher reads them where it is asked about them.
data::SampleRule distill_evaluation_rule(const Recipe& recipe, const models::ChatTemplate& chat);

}  // namespace retort::recipes
