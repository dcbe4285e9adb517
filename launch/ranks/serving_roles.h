// The roles that serve the student, and what a rank of each is made of.
#pragma once

#include "launch/ranks/serving_rank.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::launch {

// This rank of whichever role `context` names: loads its model, or waits for its engine and asks
// what its answers mean, or for its environment. `context` must outlive it.
ServingRank make_serving_rank(const recipes::RankContext& context);

// A model of ours.
ServingRank make_teacher(const recipes::RankContext& context);
ServingRank make_generator(const recipes::RankContext& context);
ServingRank make_score_server(const recipes::RankContext& context);
ServingRank make_judge_server(const recipes::RankContext& context);
// A program or a service that answers turns: started, or waited for. One that is lost for good ends
// the role, which begins anew.
ServingRank make_environment_server(const recipes::RankContext& context);
// The same with an inference engine of others, which is started if the role has a command for it,
// and waited for; an engine that is lost ends the role, which begins anew and waits for it again.
ServingRank make_engine_teacher(const recipes::RankContext& context);
ServingRank make_engine_generator(const recipes::RankContext& context);
ServingRank make_engine_reward(const recipes::RankContext& context);
ServingRank make_engine_judge(const recipes::RankContext& context);

}  // namespace retort::launch
