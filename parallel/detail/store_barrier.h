// Where the ranks of a world, or of one group, wait for each other before they connect, so that an
// error names who is missing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "parallel/world.h"

namespace retort::parallel::detail {

// Says that the member at `position` is here and waits until all `size` members have said so. Three
// requests to the store of each member, however many there are: it counts itself, leaves its mark,
// and waits for one key that the last one sets. False if the deadline comes first.
//   `place`: a prefix of keys, the same for all members; each may come once
bool meet(StoreClient& store, const std::string& place, int64_t position, int64_t size,
          Deadline deadline);

// Positions of members that have left no mark, at most `most` of them. For errors: some ten
// requests for each that is missing.
std::vector<int64_t> missing_members(StoreClient& store, const std::string& place, int64_t size,
                                     size_t most);

}  // namespace retort::parallel::detail
