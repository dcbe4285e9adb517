// The rewards of a rollout.
#pragma once

#include "parallel/group.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/rollout.h"

namespace retort::recipes {

// Scores every sample of a dp rank's rollout. The first rank of `mp`, the ranks that have this
// rollout, asks `rewards`; the others get what it got. Collectives: a vote and one broadcast on mp;
// none if there are no samples. Errors: RewardSet::score's.
void score_rollout(Rollout& rollout, rewards::RewardSet& rewards, parallel::Group& mp);

}  // namespace retort::recipes
