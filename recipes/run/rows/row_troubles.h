// What is wrong with the rows of a run that are not refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "recipes/data/row_set.h"

namespace retort::recipes {

// Told with the first numbers, and at the end if there is more of it: rows that are cut, whose
// prompts differ when tokenised alone, that are longer than the model's positions. Threads: one.
class RowTroubles {
 public:
  using Say = std::function<void(int64_t step, const std::string& what)>;
  // `rows` outlives it. `max_positions`: of the model.
  RowTroubles(const data::RowSet& rows, int64_t max_positions, Say say);

  void see_first(int64_t step);
  void tell(int64_t step);

 private:
  const data::RowSet& rows_;
  const int64_t max_positions_;
  const Say say_;
  bool seen_ = false;
  data::RowSet::ReadRows told_;
};

}  // namespace retort::recipes
