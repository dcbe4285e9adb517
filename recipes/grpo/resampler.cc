#include "recipes/grpo/resampler.h"

#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/vote.h"
#include "recipes/grpo/round_rewards.h"
#include "recipes/rollout/prompt_sharding.h"

namespace retort::recipes {
namespace {

// These requests have numbers above those of all rounds and evaluations.
constexpr uint64_t kFirstResample = uint64_t{1} << 42;

}  // namespace

Resampler::Drawn Resampler::draw(Rollout& rollout, const std::vector<int64_t>& places,
                                 int64_t step) {
  const data::IndexStream::Step rows = stream_.next(to_int64(places.size()));
  // At the end of an epoch there may be fewer prompts than places: the last places keep their
  // samples.
  const std::vector<int64_t> filled(places.begin(), places.begin() + to_int64(rows.rows.size()));
  DealtPrompts dealt;
  deal(prompts_, rows, filled, options_.num_generations, world_.dp(), dealt);

  Rollout fresh = parallel::run_on_all(world_.all(), [&] {
    PendingRollout pending = scorer_.begin(samples_, {.step = step,
                                                      .number = kFirstResample + requests_++,
                                                      .prompts = std::move(dealt.prompts),
                                                      .num_generations = options_.num_generations,
                                                      .sample_ids = std::move(dealt.sample_ids)});
    return scorer_.finish(samples_, std::move(pending), world_.mp());
  });

  punish_overlong(fresh, options_.max_new_tokens, options_.overlong_penalty_tokens);

  // Prompts are dealt round the ranks: the one at place i of a round is number i / dp of its rank.
  auto group = fresh.groups.begin();
  for (const int64_t place : filled) {
    if (place % world_.dp().size() != world_.dp().rank()) continue;
    rollout.groups.at(static_cast<size_t>(place / world_.dp().size())) = std::move(*group++);
  }
  RETORT_CHECK(group == fresh.groups.end()) << "more prompts were drawn than there are places";

  rollout.generation_seconds += fresh.generation_seconds;
  rollout.wait_seconds += fresh.wait_seconds;
  rollout.reward_seconds += fresh.reward_seconds;
  rollout.reward_wait_seconds += fresh.reward_wait_seconds;
  return {.num_prompts = to_int64(filled.size()), .after = rows.after};
}

}  // namespace retort::recipes
