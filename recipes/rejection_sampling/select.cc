#include "recipes/rejection_sampling/select.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace retort::recipes {

std::vector<size_t> select(const std::vector<Candidate>& candidates,
                           const RejectionSamplingOptions& options) {
  // The best stand first, over all prompts. Ties are broken by prompt and sample, which no layout
  // changes, so that every rank and every layout keeps the same.
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Candidate& x = candidates[a];
    const Candidate& y = candidates[b];
    return std::tuple(-x.reward, x.prompt, x.sample_id) <
           std::tuple(-y.reward, y.prompt, y.sample_id);
  });

  if (!options.keep_truncated)
    std::erase_if(order, [&](size_t i) { return candidates[i].truncated; });
  if (options.deduplicate) {
    std::set<std::pair<int64_t, std::string>> seen;
    std::erase_if(order, [&](size_t i) {
      return !seen.emplace(candidates[i].prompt, candidates[i].row_hash).second;
    });
  }
  if (options.threshold)
    std::erase_if(order, [&](size_t i) { return candidates[i].reward < *options.threshold; });

  if (options.select == Select::kBestOfN) {
    std::map<int64_t, int64_t> kept;
    std::erase_if(order, [&](size_t i) { return ++kept[candidates[i].prompt] > options.top_n; });
  }
  if (options.select == Select::kTopFraction) {
    // The share is one of all that were drawn, with duplicates and with what was cut off.
    const double share = *options.top_fraction * static_cast<double>(candidates.size());
    order.resize(std::min(order.size(), static_cast<size_t>(share)));
  }

  // Rows are written by prompt; those of a prompt keep their order, the best first.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].prompt < candidates[b].prompt; });
  return order;
}

}  // namespace retort::recipes
