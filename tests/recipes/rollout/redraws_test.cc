// The bound on draws that come to nothing.
#include "recipes/rollout/redraws.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

const Error& lost_draw() {
  static const Error error(ErrorCode::kCancelled, "the request was lost with its generator");
  return error;
}

TEST(Redraws, EndWithAnErrorAfterTenWithTheSameWeights) {
  Redraws redraws(7);
  for (int64_t i = 0; i < Redraws::kMax; ++i)
    redraws.pause_after(lost_draw(), false);

  const Error error = test::error_of([&] { redraws.pause_after(lost_draw(), false); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_NE(error.message().find("drawn 11 times with the newest weights"), std::string::npos)
      << error.message();
  EXPECT_NE(error.message().find("the request was lost with its generator"), std::string::npos)
      << "what the last one said: " << error.message();
  EXPECT_NE(std::string(error.what()).find("step=7"), std::string::npos) << error.what();
}

// Each pause is longer than the one before, up to the longest.
TEST(Redraws, WaitLongerEachTime) {
  Redraws redraws(0);
  std::vector<int64_t> pauses;
  for (int64_t i = 0; i < Redraws::kMax; ++i)
    pauses.push_back(redraws.pause_after(lost_draw(), false).count());
  EXPECT_EQ(pauses, (std::vector<int64_t>{100, 300, 700, 1500, 3100, 6300, 10'000, 10'000, 10'000,
                                          10'000}));
}

// A push may end any number of draws.
TEST(Redraws, ComeAtOnceAndAreNotCountedForNewerWeights) {
  Redraws redraws(0);
  for (int64_t i = 0; i < 3 * Redraws::kMax; ++i)
    EXPECT_EQ(redraws.pause_after(lost_draw(), true), Duration(0));

  // Newer weights begin the count anew, and the pauses.
  for (int64_t i = 0; i < Redraws::kMax; ++i)
    redraws.pause_after(lost_draw(), false);
  EXPECT_EQ(redraws.pause_after(lost_draw(), true), Duration(0));
  EXPECT_EQ(redraws.pause_after(lost_draw(), false), Redraws::kFirstPause);
  for (int64_t i = 1; i < Redraws::kMax; ++i)
    redraws.pause_after(lost_draw(), false);
  EXPECT_EQ(test::code_of([&] { redraws.pause_after(lost_draw(), false); }), ErrorCode::kMismatch);
}

}  // namespace
}  // namespace retort::recipes
