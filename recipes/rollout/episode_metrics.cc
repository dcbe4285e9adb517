#include "recipes/rollout/episode_metrics.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sizes.h"
#include "models/generation/completion_spans.h"

namespace retort::recipes {
namespace {

// A sum by its name, with the number of episodes that it is of.
using Sums = std::map<std::string, std::pair<double, double>>;

constexpr const char* kEnvironment = "environment/";

void add(Sums& sums, const std::string& name, double value, double count = 1) {
  // An environment's numbers may be as large as there are. JSON, in which sums travel, has no word
  // for what is larger.
  constexpr double kLargest = std::numeric_limits<double>::max();
  auto& [sum, number] = sums[name];
  sum = std::clamp(sum + value, -kLargest, kLargest);
  number += count;
}

// Whether the episodes of a group begin otherwise than each other, as far as they were not lost;
// nullopt where there are no two.
std::optional<bool> prompts_differ(const RolloutGroup& group) {
  const std::vector<int32_t>* first = nullptr;
  std::optional<bool> differ;
  for (const RolloutSample& sample : group.samples) {
    if (is_lost(sample)) continue;
    if (first) differ = differ.value_or(false) || sample.prompt_ids != *first;
    first = first ? first : &sample.prompt_ids;
  }
  return differ;
}

Sums sums_of(const Rollout& rollout) {
  // All names but the environment's own stand here, also where a rank has no episode.
  Sums sums;
  for (const char* name : {"calls", "failed_calls", "turns", "environment_tokens", "malformed",
                           "unscorable", "other_prompts"})
    add(sums, name, 0, 0);

  for (const RolloutGroup& group : rollout.groups) {
    if (const auto differ = prompts_differ(group)) add(sums, "other_prompts", *differ ? 1 : 0);
    for (const RolloutSample& sample : group.samples) {
      const EpisodeRecord& episode = *sample.episode;
      const bool lost = is_lost(sample);
      add(sums, "unscorable", lost ? 1 : 0);
      if (lost) continue;

      const int64_t tokens = to_int64(sample.completion.token_ids.size());
      add(sums, "calls", static_cast<double>(episode.calls));
      add(sums, "failed_calls", static_cast<double>(episode.failed_calls));
      add(sums, "turns", static_cast<double>(episode.turns));
      add(sums, "environment_tokens",
          static_cast<double>(tokens - models::num_model_tokens(sample.completion)));
      add(sums, "malformed", episode.malformed > 0 ? 1 : 0);
      for (const auto& [name, value] : episode.metrics)
        add(sums, kEnvironment + name, value);
    }
  }
  return sums;
}

// The names that an environment reports may differ from rank to rank, so they travel with the sums.
Sums reduce(const Sums& mine, parallel::Group& dp) {
  if (dp.size() == 1) return mine;
  Sums all;
  for (const std::string& text : dp.all_gather(nlohmann::json(mine).dump()))
    for (const auto& [name, sum] : nlohmann::json::parse(text).get<Sums>())
      add(all, name, sum.first, sum.second);
  return all;
}

}  // namespace

double add_episode_metrics(const Rollout& rollout, parallel::Group& dp, MetricsRow& row) {
  const Sums sums = reduce(sums_of(rollout), dp);
  const auto sum_of = [&](const char* name) { return sums.at(name).first; };
  const double episodes = sums.at("turns").second;  // of those that can be scored
  const auto mean_of = [&](double sum) { return episodes > 0 ? sum / episodes : 0; };

  const double calls = sum_of("calls");
  const double groups = sums.at("other_prompts").second;
  const double other_prompts = groups > 0 ? sum_of("other_prompts") / groups : 0;
  row.add("tools/call_frequency", mean_of(calls))
      .add("tools/failure_frequency", calls > 0 ? sum_of("failed_calls") / calls : 0)
      .add("episodes/mean_turns", mean_of(sum_of("turns")))
      .add("episodes/mean_environment_tokens", mean_of(sum_of("environment_tokens")))
      .add("episodes/malformed_ratio", mean_of(sum_of("malformed")))
      .add("episodes/num_lost", static_cast<int64_t>(sum_of("unscorable")))
      .add(kOtherPrompts, other_prompts);
  for (const auto& [name, sum] : sums)
    if (name.starts_with(kEnvironment)) row.add(name, sum.first / sum.second);
  return other_prompts;
}

void OtherPromptsWarning::tell(double share) {
  if (told_ || share == 0) return;
  told_ = true;
  RETORT_LOG(kWarning) << "episodes of one prompt begin with other tokens than each other ("
                       << kOtherPrompts
                       << "): the environment does not take its task from the seed that is the "
                          "same within a group, and rewards of other tasks are compared; with "
                          "retort_env.py, --seed-as NAME gives it to reset()";
}

}  // namespace retort::recipes
