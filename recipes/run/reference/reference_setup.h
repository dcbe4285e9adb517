// A reference of a run, connected.
#pragma once

#include <memory>
#include <string>

#include "recipes/run/rank/recipe_run.h"
#include "recipes/run/reference/reference.h"

namespace retort::recipes {

// Makes a reference for single tokens, with the logits divided by `temperature`, among the ids
// below `num_ids` (0: all that the reference has; an engine's numbers always are). Every rank of
// the student calls; the one that asks for its replica's loss connects.
std::unique_ptr<Reference> make_reference(RunContext& context, const std::string& role,
                                          double temperature, int64_t num_ids);

// Makes a reference for whole completions, which are kept in `cache_folder` ("": the run's own
// cache) by their content and the reference's weights and tokenizer.
std::unique_ptr<Reference> make_cached_reference(RunContext& context, const std::string& role,
                                                 const std::string& cache_folder);

}  // namespace retort::recipes
