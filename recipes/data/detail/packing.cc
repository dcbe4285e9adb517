#include "recipes/data/detail/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace retort::data::detail {

std::vector<std::vector<int64_t>> pack_best_fit(const std::vector<int64_t>& lengths,
                                                int64_t capacity) {
  // Best-fit decreasing: the longest go first, equal ones in their order.
  const auto length = [&](int64_t i) { return lengths[static_cast<size_t>(i)]; };
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return length(a) > length(b); });

  // Each goes into the fullest pack that has room, or a new one where none has.
  std::vector<std::vector<int64_t>> packs;
  std::set<std::pair<int64_t, size_t>> room;  // (tokens left, pack)
  for (const int64_t i : order) {
    RETORT_CHECK(length(i) >= 1 && length(i) <= capacity)
        << "length " << length(i) << ", capacity " << capacity;
    const auto best = room.lower_bound({length(i), 0});
    std::pair<int64_t, size_t> place{capacity, packs.size()};
    if (best == room.end()) {
      packs.emplace_back();
    } else {
      place = *best;
      room.erase(best);
    }
    packs[place.second].push_back(i);
    if (place.first > length(i)) room.emplace(place.first - length(i), place.second);
  }

  // The packs are given in the order of the samples, inside a pack and from pack to pack.
  for (auto& pack : packs)
    std::sort(pack.begin(), pack.end());
  std::sort(packs.begin(), packs.end(),
            [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return packs;
}

}  // namespace retort::data::detail
