// Rules of the `train:` block, and what several recipe types ask of it.
#pragma once

#include <string>

#include "recipes/data/options.h"
#include "recipes/document/recipe_places.h"
#include "recipes/document/role_options.h"
#include "recipes/document/train_options.h"
#include "recipes/type/recipe_type.h"

namespace retort::recipes {

// Refuses keys that change nothing with these data, this student and this type.
void check_train(const TrainOptions& train, const data::DataOptions& data,
                 const RoleOptions& student, const RecipeType& type, const RecipePlaces& places);
// train.min_lr, by the rate that holds where none is written.
void check_least_rate(const TrainOptions& train, const RecipePlaces& places);

// All rules below are for RecipeType::check. A step whose numbers are not finite cannot be left out
// where all of its rows share `what` ("z, which all rows share"): one row makes it not finite for
// all.
void check_no_skipped_steps(const TrainOptions& train, const RecipePlaces& places,
                            const std::string& what);
// Batches of pairs, each two sequences.
void check_pair_batches(const TrainOptions& train, const data::DataOptions& data,
                        const RecipePlaces& places);

}  // namespace retort::recipes
