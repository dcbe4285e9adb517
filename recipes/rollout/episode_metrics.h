// What metrics say of the episodes of a round.
#pragma once

#include "parallel/group.h"
#include "recipes/rollout/rollout.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

inline constexpr const char* kOtherPrompts = "episodes/frac_groups_with_other_prompts";

// Adds means over the episodes of all ranks of `dp`: of calls and failed ones in TRL's words, of
// turns, of the environment's tokens, and of each number that the environment reported, over those
// that reported it. Episodes that were lost are counted, and in no mean. Returns, and adds as
// kOtherPrompts, the share of groups whose episodes begin otherwise than each other, which are not
// comparable.
//
// Collectives, on dp: two all-gathers; none in a group of one rank.
double add_episode_metrics(const Rollout& rollout, parallel::Group& dp, MetricsRow& row);

// Warns once that rewards within a group say nothing of one another, as each of its episodes has a
// task of its own. One rank of a run tells.
class OtherPromptsWarning {
 public:
  // `share`: add_episode_metrics'.
  void tell(double share);

 private:
  bool told_ = false;
};

}  // namespace retort::recipes
