#include "tests/recipes/run_support/cache_support.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace retort::test {

std::vector<std::string> cache_command(const fs::path& recipe, const fs::path& cache,
                                       const Overrides& overrides) {
  std::vector<std::string> args{"cache", recipe.string()};
  args.insert(args.end(), overrides.begin(), overrides.end());
  args.insert(args.end(), {"--output", cache.string()});
  return args;
}

fs::path write_cache(const fs::path& folder, const GoldenRecipe& recipe,
                     const Overrides& overrides) {
  const fs::path cache = folder / "cache";
  const CommandResult result =
      retort(cache_command(write_recipe(folder, recipe), cache, overrides));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return cache;
}

Overrides from_cache(const fs::path& cache) {
  return {"roles.teacher=null", "distill.teachers=[{cache: " + cache.string() + "}]"};
}

CommandResult run_cached(const fs::path& folder, const GoldenRecipe& recipe, const fs::path& cache,
                         Overrides overrides) {
  const Overrides cached = from_cache(cache);
  overrides.insert(overrides.begin(), cached.begin(), cached.end());
  overrides.insert(overrides.begin(), {"launch", write_recipe(folder, recipe).string()});
  return retort(overrides);
}

nlohmann::json manifest_of(const fs::path& cache) {
  return nlohmann::json::parse(read_file(cache / "manifest.json"));
}

int64_t bytes_on_disk(const fs::path& cache) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(cache / "payloads"))
    bytes += static_cast<int64_t>(entry.file_size());
  if (fs::exists(cache / "head.bin"))
    bytes += static_cast<int64_t>(fs::file_size(cache / "head.bin"));
  return bytes;
}

}  // namespace retort::test
