// The fuzz targets without a fuzzer: what our encoders make, what once went wrong (corpus/), and
// fixed changes of both. `./dev fuzz` looks further.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/fuzz/mutations.h"
#include "tests/fuzz/target.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::fuzz {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kMutations = 1000;  // of each input

fs::path corpus_folder() { return test::source_folder() / "tests/fuzz/corpus"; }

// In the order of their names, which differs between file systems.
std::vector<Seed> found_inputs(std::string_view target) {
  std::vector<Seed> inputs;
  const fs::path folder = corpus_folder() / target;
  if (!fs::exists(folder)) return inputs;
  for (const auto& entry : fs::directory_iterator(folder))
    inputs.push_back({entry.path().filename().string(), read_file(entry.path())});
  std::sort(inputs.begin(), inputs.end(),
            [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return inputs;
}

class FuzzTarget : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzTarget, TakesWhatOurEncodersMake) {
  const std::vector<Seed> seeds = GetParam().seeds();
  EXPECT_FALSE(seeds.empty());
  for (const Seed& seed : seeds)
    EXPECT_TRUE(run(GetParam(), seed.bytes)) << seed.name;
}

TEST_P(FuzzTarget, KeepsItsWordWhateverTheBytes) {
  const Target& target = GetParam();
  std::vector<Seed> inputs = target.seeds();
  for (Seed& input : found_inputs(target.name))
    inputs.push_back(std::move(input));

  // A changed input may be taken or refused; what else happens is a bug.
  size_t refused = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE("input " + inputs[i].name);
    EXPECT_NO_THROW(run(target, inputs[i].bytes));
    for (uint64_t m = 0; m < kMutations; ++m) {
      const Seed& other = inputs[m % inputs.size()];
      const std::string bytes = mutated(inputs[i].bytes, other.bytes, m);
      EXPECT_NO_THROW(refused += run(target, bytes) ? 0 : 1) << "mutation " << m;
    }
  }
  EXPECT_GT(refused, 0u) << "nothing was ever refused: does it check anything?";
}

INSTANTIATE_TEST_SUITE_P(All, FuzzTarget, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FuzzCorpus, BelongsToTargets) {
  for (const auto& folder : fs::directory_iterator(corpus_folder()))
    EXPECT_NO_THROW(find_target(folder.path().filename().string())) << folder.path();
}

TEST(FuzzTargets, AnUnknownNameIsRefused) {
  test::expect_error(ErrorCode::kInvalidArgument, "envelope", [] { find_target("nothing"); });
}

// Without this the test above could not fail.
TEST(FuzzTargets, ABrokenWordIsNoRefusal) {
  const Target broken{"broken",
                      [](std::string_view bytes) {
                        expect(bytes.empty(), "it is not empty");
                        return true;
                      },
                      [] { return std::vector<Seed>{}; }};
  EXPECT_TRUE(run(broken, ""));
  EXPECT_THROW(run(broken, "x"), Broken);
}

}  // namespace
}  // namespace retort::fuzz
