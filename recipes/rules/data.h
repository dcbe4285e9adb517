// Rules of the `data:` block, and what several recipe types ask of it.
#pragma once

#include <string>

#include "recipes/data/options.h"
#include "recipes/document/recipe_places.h"
#include "recipes/document/train_options.h"

namespace retort::recipes {

// There is something to train on, and a micro-batch has room for a row of it.
void check_data(const data::DataOptions& data, const TrainOptions& train,
                const RecipePlaces& places);
// Refuses keys that change nothing with these sources.
void check_data_effects(const data::DataOptions& data, const RecipePlaces& places);
// The files of all sources are there.
void check_source_files(const data::DataOptions& data, const RecipePlaces& places);

// All rules below are for RecipeType::check. `what` ("pairs") are never packed, so the key would
// have no effect.
void check_no_packing(const data::DataOptions& data, const RecipePlaces& places,
                      const std::string& what);
// Refuses data.truncation_mode: keep_end, where a cut row would be another one: `why`.
void check_keeps_start(const data::DataOptions& data, const RecipePlaces& places,
                       const std::string& why);
// Rows are not cut into packs, for they are `what` ("pairs, whose completions are compared whole").
void check_no_wrapping(const data::DataOptions& data, const RecipePlaces& places,
                       const std::string& what);
// data.tokenized_cache has samples; this recipe reads `what`, which it cannot hold.
void check_no_tokenized_cache(const data::DataOptions& data, const RecipePlaces& places,
                              const std::string& what);
// The recipe itself says which tokens are trained on: `what` ("completions of the generator").
void check_no_target_choice(const data::DataOptions& data, const RecipePlaces& places,
                            const std::string& what);

}  // namespace retort::recipes
