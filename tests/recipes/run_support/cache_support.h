// Whole runs of `retort cache`, and of students that train from what it wrote.
#pragma once

#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

using Overrides = std::vector<std::string>;

// `retort cache RECIPE --output FOLDER/cache`; fails the test if it fails.
fs::path write_cache(const fs::path& folder, const GoldenRecipe& recipe,
                     const Overrides& overrides = {});
// The command, to be started.
std::vector<std::string> cache_command(const fs::path& recipe, const fs::path& cache,
                                       const Overrides& overrides = {});

// The recipe without its teacher, from a cache: the overrides that say so.
Overrides from_cache(const fs::path& cache);
// Runs it in folder/run.
CommandResult run_cached(const fs::path& folder, const GoldenRecipe& recipe, const fs::path& cache,
                         Overrides overrides = {});

nlohmann::json manifest_of(const fs::path& cache);
// Of payloads/ and head.bin, as they lie there.
int64_t bytes_on_disk(const fs::path& cache);

}  // namespace retort::test
