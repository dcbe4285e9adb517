#include "recipes/dpo/counterparts.h"

#include <ATen/ops/zeros.h>

#include <cstdint>
#include <numeric>

#include "recipes/losses/counterparts.h"

namespace retort::recipes {

at::Tensor counterparts_over(parallel::Group& group, const at::Tensor& sums) {
  // Where each rank's pairs stand in those of all.
  at::Tensor counts = at::zeros({group.size()}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  count[group.rank()] = sums.size(1);
  group.all_reduce(counts);
  const int64_t begin = std::accumulate(count, count + group.rank(), int64_t{0});
  const int64_t total = std::accumulate(count, count + group.size(), int64_t{0});

  // Each number is one rank's, and zeros of the others: their sum is that number.
  at::Tensor all = at::zeros({4, total}, at::kFloat);
  all.narrow(1, begin, sums.size(1)).copy_(sums);
  group.all_reduce(all);
  return losses::counterparts(all.select(0, 0), all.select(0, 1), all.select(0, 2),
                              all.select(0, 3))
      .narrow(1, begin, sums.size(1));
}

}  // namespace retort::recipes
