// Chooses which samples share a row.
#pragma once

#include <cstdint>
#include <vector>

namespace retort::data::detail {

// Best-fit decreasing: the longest first, each into the fullest row that still has room. Returns
// rows of indices into `lengths`, each row increasing, rows by their first index. Every length must
// be in [1, capacity]. O(n log n), deterministic.
std::vector<std::vector<int64_t>> pack_best_fit(const std::vector<int64_t>& lengths,
                                                int64_t capacity);

}  // namespace retort::data::detail
