// Decides whether a run goes on with rows that are not quite those that it began with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/row_identity.h"
#include "recipes/data/row_set.h"

namespace retort::data {

// Says how far a run has come, and where the hashes of its rows are.
struct ResumedAt {
  std::string checkpoint;  // for messages
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t epoch = 0;
  // Places at the beginning of this epoch's order whose rows were used; nullopt: not known, so that
  // any row may have been.
  std::optional<int64_t> used_places;
  std::filesystem::path hashes;  // RowHashes' folder
};

// Accepts what cannot have changed anything that was trained so far, and returns what is to be told
// of it:
//   on_bad_sample: error -> skip    every row that was used was good
//   another file of as many rows    no row that was used differs, by the hashes of both
// A window of a batch stream counts as used as soon as a pack of it was (used_places() in
// batches.h), since the lengths of all its rows shaped the packs. After epoch 0 all rows were used.
// Everything else is kInvalidArgument naming the option or the file, or the first row that was used
// and changed. Reads the files that changed, once. Memory: flat.
std::vector<std::string> compare_rows(const RowIdentity& before, const RowSet& now,
                                      const ResumedAt& at);

}  // namespace retort::data
