// What is right and wrong in a recipe of distillation beyond its own block, and in the files that
// it names.
#pragma once

#include <string>
#include <vector>

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::recipes {

// A recipe that names no teacher and has a role `teacher` means that one; without such a role it is
// refused.
void assume_teacher(Recipe& recipe, const RecipePlaces& places);

// Each once, in the order in which the block names them.
std::vector<std::string> teacher_roles(const DistillOptions& distill);

void check_distill(const Recipe& recipe, const RecipePlaces& places);

// What caps a teacher's logits is not sent with its head.
void check_hidden_states(const Recipe& recipe, const RecipePlaces& places);

// Refuses more ids for a target token than the vocabulary has that both sides know.
void check_loss_top_k(const Recipe& recipe, const RecipePlaces& places);

// With distill.cross_tokenizer: both tokenizers have tokens that stand for bytes, and for `gold`
// enough of them are the same. A warning where the tokenizers are one.
void check_two_tokenizers(const Recipe& recipe, const RecipePlaces& places);

// A cache must hold what the recipe asks for.
void open_caches(const Recipe& recipe, const RecipePlaces& places);

// A warning at each teacher whose tokenizer has more ids than the student's: it may put its
// probability on them, which its answers alone show. Tokenizers are opened where the teacher's
// table is the larger one, which padding makes it among models of one family, too.
void warn_of_more_ids(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
