// A recipe's `rejection_sampling:` block: how many rounds, and which samples are kept.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.h"

namespace retort::recipes {

// best_of_n: the top_n best of each prompt. threshold: every sample with at least this reward.
// top_fraction: the best share of all samples of the round.
enum class Select { kBestOfN, kThreshold, kTopFraction };

struct RejectionSamplingOptions {
  int64_t rounds = 2;
  int64_t prompts_per_round = 0;
  Select select = Select::kBestOfN;
  int64_t top_n = 1;
  std::optional<double> threshold;
  std::optional<double> top_fraction;
  bool deduplicate = true;
  bool keep_truncated = true;

  template <class V>
  void fields(V& visit) {
    visit("rounds", rounds,
          "how often samples are drawn, scored, selected and trained on; each round trains an "
          "equal part of train.max_steps");
    visit("prompts_per_round", prompts_per_round,
          "prompts of a round, continuing through the data; 0: one pass over all of it");
    visit("select", select, "which samples are trained on");
    visit("top_n", top_n, "with select: best_of_n, the samples kept of each prompt");
    visit("threshold", threshold,
          "lowest reward that is kept: required with select: threshold, optional with best_of_n");
    visit("top_fraction", top_fraction,
          "with select: top_fraction, the share of the round's samples that is kept, in (0, 1]");
    visit("deduplicate", deduplicate,
          "a completion, or an episode, that a prompt has several times counts once");
    visit("keep_truncated", keep_truncated,
          "false: a completion that was cut off at generation.max_new_tokens, and an episode that "
          "came to an end by environment.max_turns or max_tokens, is not trained on, whatever its "
          "reward");
  }
  // kInvalidArgument naming the field: ranges, fields without effect.
  void validate() const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::Select> {
  using E = retort::recipes::Select;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"best_of_n", E::kBestOfN},
       {"threshold", E::kThreshold},
       {"top_fraction", E::kTopFraction}}};
};
