#include "recipes/rollout/prompt_sharding.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"

namespace retort::recipes {

data::IndexStream::Step next_prompts(data::IndexStream& stream, int64_t count, int64_t least) {
  data::IndexStream::Step prompts = stream.next(count);
  // A step of the stream does not reach into the next epoch, so the last one of an epoch may have
  // too few prompts: the next epoch fills up.
  while (to_int64(prompts.rows.size()) < least) {
    data::IndexStream::Step more = stream.next(least - to_int64(prompts.rows.size()));
    more.rows.insert(more.rows.begin(), prompts.rows.begin(), prompts.rows.end());
    prompts = std::move(more);
  }
  return prompts;
}

void deal(const data::PromptDataset& prompts, const data::IndexStream::Step& rows,
          int64_t first_place, int64_t num_generations, parallel::Group& dp, DealtPrompts& dealt) {
  std::vector<int64_t> places(rows.rows.size());
  std::iota(places.begin(), places.end(), first_place);
  deal(prompts, rows, places, num_generations, dp, dealt);
}

void deal(const data::PromptDataset& prompts, const data::IndexStream::Step& rows,
          const std::vector<int64_t>& places, int64_t num_generations, parallel::Group& dp,
          DealtPrompts& dealt) {
  RETORT_CHECK(places.size() == rows.rows.size());
  const auto generations = static_cast<uint64_t>(num_generations);
  const uint64_t first = static_cast<uint64_t>(rows.after.total) - rows.rows.size();
  // A sample's id follows from its place among all prompts of the run, so that a resumed run draws
  // the same tokens.
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    if (places[i] % dp.size() != dp.rank()) continue;

    dealt.prompts.push_back(prompts.get(rows.rows[i]).value());
    for (uint64_t g = 0; g < generations; ++g)
      dealt.sample_ids.push_back((first + i) * generations + g);
  }
}

}  // namespace retort::recipes
