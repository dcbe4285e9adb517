// The KL to the reference as a part of rewards instead of losses (as TRL's RLOOTrainer has it).
#pragma once

#include <vector>

#include "parallel/world.h"
#include "recipes/grpo/micro_batch.h"
#include "recipes/grpo/reference_questions.h"
#include "recipes/rollout/rollout.h"

namespace retort::recipes {

// Sums over this rank's samples.
struct RewardKl {
  double sum = 0;
  double tokens = 0;
};

// Takes from the reward of each sample of this rank beta times its completion's k1 KL to the
// reference, the sum of log p_generator - log p_reference over its tokens. Waits for the
// reference's answers to all of `batches`, which are made of the rollout; what it said is known
// where the pipeline ends. Collectives: those of ReferenceQuestions::token_log_probs, a vote on mp,
// and one broadcast on pp.
RewardKl take_kl_from_rewards(parallel::World& world, Rollout& rollout,
                              std::vector<GrpoMicroBatch>& batches, ReferenceQuestions& reference,
                              double beta);

}  // namespace retort::recipes
