#include "recipes/rollout/lost_round.h"

#include "base/error.h"

namespace retort::recipes {
namespace {

// Why the first episode that was lost here was; "": none was.
std::string first_loss(const Rollout& rollout) {
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      if (is_lost(sample)) return sample.episode->outcome.unscorable;
  return "";
}

}  // namespace

void refuse_lost_round(const Rollout& rollout, int64_t episodes, const std::string& can) {
  const std::string why = first_loss(rollout);
  throw Error(ErrorCode::kUnavailable,
              "not one of the " + std::to_string(episodes) + " episodes of this round " + can +
                  (why.empty() ? "; this rank has lost none: another one says why, or rewards gave "
                                 "no number, or models no token"
                               : "; the first of this rank: " + why));
}

}  // namespace retort::recipes
