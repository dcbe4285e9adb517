// Sequences that no model was trained on and no cache has seen.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"

namespace retort::engines {

// The ids at `first`, `first` + 1, ... of the stream that `seed` names, each below `vocab_rows`.
inline std::vector<int32_t> random_ids(uint64_t seed, int64_t first, int64_t count,
                                       int64_t vocab_rows) {
  std::vector<int32_t> ids;
  for (int64_t i = first; i < first + count; ++i)
    ids.push_back(static_cast<int32_t>(random_bits(seed, static_cast<uint64_t>(i)) %
                                       static_cast<uint64_t>(vocab_rows)));
  return ids;
}

}  // namespace retort::engines
