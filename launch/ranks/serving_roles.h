// The roles that serve the student: what a rank of one does from its start to its end.
#pragma once

#include "recipes/run/rank_context.h"

namespace retort::launch {

// A frozen model: loads it, publishes the address, answers until told to stop.
void run_teacher_role(const recipes::RankContext& context);
// A generator: the same, and takes over the student's weights.
void run_generator_role(const recipes::RankContext& context);
// A model of ours that scores completions, or that is asked about them in words.
void run_score_role(const recipes::RankContext& context);
void run_judge_role(const recipes::RankContext& context);
// The same with an inference engine of others, which is started if the role has a command for it,
// and waited for; an engine that is lost ends the role, which begins anew and waits for it again.
void run_engine_teacher_role(const recipes::RankContext& context);
void run_engine_generator_role(const recipes::RankContext& context);
void run_engine_reward_role(const recipes::RankContext& context);
void run_engine_judge_role(const recipes::RankContext& context);

// Publishes the address of this rank's agent: whoever finds it finds a role that answers.
void publish_address(const recipes::RankContext& context, const std::string& address);

}  // namespace retort::launch
