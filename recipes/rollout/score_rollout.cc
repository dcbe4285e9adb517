#include "recipes/rollout/score_rollout.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/vote.h"

namespace retort::recipes {
namespace {

// The first rank's scores on every rank of the group: of each sample whether there is one, and
// which; total, then components.
void share_scores(const std::vector<RolloutSample*>& samples, size_t components,
                  parallel::Group& group) {
  const auto rows = static_cast<int64_t>(samples.size());
  const auto columns = static_cast<int64_t>(1 + components);
  at::Tensor table = at::zeros({rows, columns, 2}, at::kDouble);
  const bool first = group.rank() == 0;
  const auto each = [&](const auto& visit) {
    double* entry = table.mutable_data_ptr<double>();
    for (RolloutSample* sample : samples) {
      sample->components.resize(components);
      for (size_t c = 0; c <= components; ++c, entry += 2)
        visit(c == 0 ? sample->reward : sample->components[c - 1], entry);
    }
  };

  if (first)
    each([](const std::optional<double>& score, double* entry) {
      entry[0] = score.has_value() ? 1 : 0;
      entry[1] = score.value_or(0);
    });
  group.broadcast(table, 0);
  if (!first)
    each([](std::optional<double>& score, const double* entry) {
      if (entry[0] != 0) score = entry[1];
    });
}

}  // namespace

void score_rollout(Rollout& rollout, rewards::RewardSet& rewards, parallel::Group& mp) {
  std::vector<rewards::RewardInput> inputs;
  std::vector<RolloutSample*> samples;
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples) {
      samples.push_back(&sample);
      inputs.push_back(
          {.prompt = group.prompt.prompt_text,
           .completion = sample.text,
           .reference = group.prompt.reference,
           .num_tokens = static_cast<int64_t>(sample.completion.token_ids.size()),
           .truncated = sample.completion.finish_reason == models::FinishReason::kLength,
           .fields = group.prompt.fields,
           .origin = group.prompt.origin});
    }
  if (inputs.empty()) return;

  // One rank scores, all of them know it.
  parallel::run_on_all(mp, [&] {
    if (mp.rank() != 0) return;
    std::vector<rewards::Scored> scores = rewards.score(inputs);
    RETORT_CHECK(scores.size() == inputs.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i]->reward = scores[i].total;
      samples[i]->components = std::move(scores[i].components);
    }
  });
  if (mp.size() > 1) share_scores(samples, rewards.names().size(), mp);
}

}  // namespace retort::recipes
