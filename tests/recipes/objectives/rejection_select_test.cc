// Which samples rejection sampling keeps, and which steps of on-policy distillation are on-policy.
#include <gtest/gtest.h>

#include "recipes/distill/on_policy.h"
#include "recipes/rejection_sampling/select.h"

namespace retort::recipes {
namespace {

// Two prompts; of prompt 0 "a" is drawn twice, rewards tie on both.
const std::vector<Candidate> kCandidates{
    {.prompt = 1, .reward = 0.5, .sample_id = 11, .row_hash = "x"},
    {.prompt = 0, .reward = 1.0, .sample_id = 3, .row_hash = "a"},
    {.prompt = 0, .reward = 1.0, .sample_id = 1, .row_hash = "a"},
    {.prompt = 0, .reward = 1.0, .sample_id = 2, .row_hash = "b"},
    {.prompt = 1, .reward = 2.0, .sample_id = 12, .row_hash = "y"},
    {.prompt = 0, .reward = -1.0, .sample_id = 4, .row_hash = "c"},
    {.prompt = 1, .reward = 0.5, .sample_id = 10, .row_hash = "z"}};

std::vector<uint64_t> kept(const RejectionSamplingOptions& options,
                           const std::vector<Candidate>& candidates = kCandidates) {
  std::vector<uint64_t> ids;
  for (const size_t i : select(candidates, options))
    ids.push_back(candidates.at(i).sample_id);
  return ids;
}
using Ids = std::vector<uint64_t>;

TEST(Select, BestOfN) {
  EXPECT_EQ(kept({}), (Ids{1, 12}));  // ties: the lower sample id
  EXPECT_EQ(kept({.top_n = 2}), (Ids{1, 2, 12, 10}));
  EXPECT_EQ(kept({.top_n = 2, .deduplicate = false}), (Ids{1, 2, 12, 10}));
  EXPECT_EQ(kept({.top_n = 3, .deduplicate = false}), (Ids{1, 2, 3, 12, 10, 11}));
  EXPECT_EQ(kept({.top_n = 9}), (Ids{1, 2, 4, 12, 10, 11}));
  EXPECT_EQ(kept({.top_n = 9, .threshold = 1.0}), (Ids{1, 2, 12}));
  EXPECT_EQ(kept({.threshold = 1.5}), (Ids{12}));  // prompt 0 has nothing that is good enough
}

TEST(Select, Threshold) {
  EXPECT_EQ(kept({.select = Select::kThreshold, .threshold = 0.5}), (Ids{1, 2, 12, 10, 11}));
  EXPECT_EQ(kept({.select = Select::kThreshold, .threshold = 0.5, .deduplicate = false}),
            (Ids{1, 2, 3, 12, 10, 11}));
  EXPECT_EQ(kept({.select = Select::kThreshold, .threshold = 2.5}), Ids{});
}

TEST(Select, TopFraction) {
  // Of seven drawn: the best of the whole round, in the order of prompts.
  EXPECT_EQ(kept({.select = Select::kTopFraction, .top_fraction = 0.3}), (Ids{1, 12}));
  EXPECT_EQ(kept({.select = Select::kTopFraction, .top_fraction = 0.5}), (Ids{1, 2, 12}));
  EXPECT_EQ(kept({.select = Select::kTopFraction, .top_fraction = 1.0}),
            (Ids{1, 2, 4, 12, 10, 11}));
  EXPECT_EQ(kept({.select = Select::kTopFraction, .top_fraction = 0.1}), Ids{});
}

// What did not end is no answer, whatever its reward; the next best takes its place.
TEST(Select, LeavesOutWhatWasCutOff) {
  std::vector<Candidate> candidates = kCandidates;
  candidates[2].truncated = true;  // sample 1
  candidates[4].truncated = true;  // sample 12
  EXPECT_EQ(kept({}, candidates), (Ids{1, 12})) << "kept unless it is said otherwise";
  EXPECT_EQ(kept({.keep_truncated = false}, candidates), (Ids{2, 10}));
  EXPECT_EQ(kept({.threshold = 1.0, .keep_truncated = false}, candidates), (Ids{2}));
  // A share of all that was drawn.
  EXPECT_EQ(kept({.select = Select::kTopFraction, .top_fraction = 0.3, .keep_truncated = false},
                 candidates),
            (Ids{2, 3}));
}

TEST(Select, DoesNotDependOnTheOrderOfCandidates) {
  std::vector<Candidate> turned(kCandidates.rbegin(), kCandidates.rend());
  for (const bool deduplicate : {false, true})
    for (const int64_t n : {1, 2, 3}) {
      const RejectionSamplingOptions options{.top_n = n, .deduplicate = deduplicate};
      EXPECT_EQ(kept(options, turned), kept(options));
    }
  EXPECT_EQ(kept({}, {}), Ids{});
}

TEST(IsOnPolicy, IsADrawFromSeedAndStepAlone) {
  int64_t some = 0, differ = 0;
  for (int64_t step = 1; step <= 4000; ++step) {
    EXPECT_FALSE(is_on_policy(1, step, 0.0));
    EXPECT_TRUE(is_on_policy(1, step, 1.0));
    EXPECT_EQ(is_on_policy(1, step, 0.3), is_on_policy(1, step, 0.3));
    some += is_on_policy(1, step, 0.3);
    differ += is_on_policy(1, step, 0.3) != is_on_policy(2, step, 0.3);
    EXPECT_LE(is_on_policy(1, step, 0.3), is_on_policy(1, step, 0.6));
  }
  EXPECT_NEAR(static_cast<double>(some) / 4000, 0.3, 0.03);
  EXPECT_NEAR(static_cast<double>(differ) / 4000, 2 * 0.3 * 0.7, 0.04);
}

}  // namespace
}  // namespace retort::recipes
