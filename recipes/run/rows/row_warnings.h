// What is wrong with rows that can be trained on all the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/bad_rows.h"
#include "recipes/data/row_set.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// Rows whose prompt is not what a generator begins from; nullopt: there is none.
std::optional<std::string> prompts_differ(const data::RowSet::ReadRows& rows);

// A sequence beyond the positions that a model was made for; nullopt: it has room for all.
// `tokens`, `origin`: of the longest one; `limit`: max_position_embeddings of the student, 0: not
// said.
std::optional<std::string> beyond_positions(int64_t tokens, const std::string& origin,
                                            int64_t limit);

// Both, of the rows of a set that were read. A row that is longer than data.max_length goes on in
// another pack, where it begins anew.
std::vector<std::string> row_warnings(const data::RowSet& rows, int64_t limit);

// Prints both as lines of `retort audit`.
void print_row_warnings(const data::RowSet& rows, const std::string& student_model);

// Both as lines of `retort check`, after a look at the first rows of a set of samples.
template <class Set>
void check_first_rows(SelfCheck& check, const Set& rows) {
  constexpr int64_t kMostRows = 1000;
  const int64_t count = std::min(rows.size(), kMostRows);
  data::BadRows bad;
  for (int64_t row = 0; row < count; ++row)
    data::collect_bad_row(bad, rows.origin(row), [&] { rows.get(row); });
  bad.refuse(count);

  const data::RowSet::ReadRows read = rows.read_rows();
  check.check("rows", read.num_rows > 0,
              std::to_string(read.num_rows) + " of the first " + std::to_string(count) +
                  " can be used; the longest has " + std::to_string(read.longest) + " tokens");
  for (const std::string& warning :
       row_warnings(rows, check.student().decoder.config().max_position_embeddings))
    check.warn("rows", warning);
}

}  // namespace retort::recipes
