// Evaluations by samples of held-out prompts: which are asked for, and what is said of them.
#pragma once

#include <cstdint>

#include "parallel/group.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/document/generation_options.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// This rank's share of the prompts of `rows`, dealt round the ranks of `dp`: of each
// generation.eval_num_generations samples, greedily drawn where that is 1. Their numbers are above
// those of all other samples and the same in every evaluation, so that evaluations differ by the
// weights alone. The request's number is above those of all rounds.
RolloutRequest held_out_request(const data::PromptDataset& rows, parallel::Group& dp,
                                const GenerationOptions& generation, int64_t step);

// The row of the evaluation after `step`: mean reward and length, with `eval_` names, and of
// several samples of a prompt pass@k. Episodes that were lost are in no length; their records were
// read. Collectives: all-reduces over dp.
MetricsRow held_out_metrics(const Rollout& rollout, const GenerationOptions& generation,
                            parallel::Group& dp, int64_t step);

}  // namespace retort::recipes
