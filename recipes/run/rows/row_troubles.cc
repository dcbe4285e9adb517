#include "recipes/run/rows/row_troubles.h"

#include <algorithm>
#include <utility>

#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {

RowTroubles::RowTroubles(const data::RowSet& rows, int64_t max_positions, Say say)
    : rows_(rows), max_positions_(max_positions), say_(std::move(say)) {}

void RowTroubles::see_first(int64_t step) {
  if (!std::exchange(seen_, true)) tell(step);
}

void RowTroubles::tell(int64_t step) {
  const data::RowSet::ReadRows rows = rows_.read_rows();
  if (rows.num_truncated != std::exchange(told_.num_truncated, rows.num_truncated))
    say_(step, std::to_string(rows.num_truncated) + " of the " + std::to_string(rows.num_rows) +
                   " rows read so far are longer than data.max_length = " +
                   std::to_string(rows_.max_length()) +
                   ", and what is beyond it is not trained on; raise it (sft and distill can cut "
                   "rows into packs instead: data.packing_strategy)");

  const auto differ = prompts_differ(rows);
  if (rows.num_prompts_differ != std::exchange(told_.num_prompts_differ, rows.num_prompts_differ))
    if (differ) say_(step, *differ);

  // A row that goes on in another pack begins there at position 0 again, so none gets beyond the
  // length of a pack.
  const int64_t longest = std::min(rows.longest, rows_.max_length());
  const auto beyond = beyond_positions(longest, rows.longest_origin, max_positions_);
  if (longest != std::exchange(told_.longest, longest) && beyond) say_(step, *beyond);
}

}  // namespace retort::recipes
