// What a generator says of an episode beside its tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipes/rewards/reward.h"

namespace retort::recipes {

struct EpisodeRecord {
  rewards::Episode outcome;                             // what rewards are told
  std::vector<std::pair<std::string, double>> metrics;  // of the environment, by its names
  int64_t turns = 0;                                    // of the model
  int64_t calls = 0, failed_calls = 0;
  int64_t malformed = 0;  // turns that began a call which could not be read
};

// Reads models::Completion::episode. kCorrupt, with what was expected, for a text that is none.
EpisodeRecord read_episode(std::string_view text);

}  // namespace retort::recipes
