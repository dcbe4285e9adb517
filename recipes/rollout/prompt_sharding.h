// Which prompts a data-parallel rank draws completions for, and what the samples are numbered.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/group.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"

namespace retort::recipes {

// The next `count` prompts; at the end of an epoch as many as it has, but at least `least`, of
// which the next epoch has the rest.
data::IndexStream::Step next_prompts(data::IndexStream& stream, int64_t count, int64_t least);

// What one rank has been dealt.
struct DealtPrompts {
  std::vector<data::PromptSample> prompts;
  std::vector<uint64_t> sample_ids;  // one for each completion of each prompt, in order
};

// Adds this rank's share of `rows`: the prompt at place i of a rollout goes to rank i mod dp, of
// which the first row has place `first_place`. A sample's number is its prompt's number in the
// order of the whole run times `num_generations` plus its own: the same whatever the layout.
void deal(const data::PromptDataset& prompts, const data::IndexStream::Step& rows,
          int64_t first_place, int64_t num_generations, parallel::Group& dp, DealtPrompts& dealt);
// Deals to the places in `places`, one for each row.
void deal(const data::PromptDataset& prompts, const data::IndexStream::Step& rows,
          const std::vector<int64_t>& places, int64_t num_generations, parallel::Group& dp,
          DealtPrompts& dealt);

}  // namespace retort::recipes
