#include "recipes/rollout/deal.h"

namespace retort::recipes {

void deal(const data::PromptDataset& prompts, const data::IndexStream::Step& rows,
          int64_t first_place, int64_t num_generations, parallel::Group& dp, DealtPrompts& dealt) {
  const auto generations = static_cast<uint64_t>(num_generations);
  const uint64_t first = static_cast<uint64_t>(rows.after.total) - rows.rows.size();
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const int64_t place = first_place + static_cast<int64_t>(i);
    if (place % dp.size() != dp.rank()) continue;

    dealt.prompts.push_back(prompts.get(rows.rows[i]).value());
    for (uint64_t g = 0; g < generations; ++g)
      dealt.sample_ids.push_back((first + i) * generations + g);
  }
}

}  // namespace retort::recipes
