// The recipe of a run that goes on by itself on the hosts that are left.
#include "launch/ssh/fit_to_hosts.h"

#include <gtest/gtest.h>

#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class FitToHosts : public RecipeTest {
 protected:
  // Four student replicas and a teacher.
  recipes::Recipe recipe(const std::vector<std::string>& more, const std::string& hosts) {
    std::vector<std::string> overrides{"launch.backend=ssh", "launch.max_restarts=2",
                                       "roles.student.world.dp=4", "roles.teacher.world.dp=1",
                                       "launch.hosts=" + hosts};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load(kDistill, overrides);
  }
  static constexpr const char* kThree =
      "[{host: a, slots: 3}, {host: b, slots: 1}, {host: c, slots: 1}]";
};

TEST_F(FitToHosts, LeavesARecipeThatFitsAlone) {
  const auto roomy = recipe({"launch.min_dp=1"}, "[{host: a, slots: 5}, {host: b, slots: 5}]");
  EXPECT_EQ(launch::fit_to_hosts(roomy, {0}).student().world.dp, 4);
}

TEST_F(FitToHosts, TakesTheLargestDpForWhichThereIsRoomAndKeepsTheBatch) {
  const auto whole = recipe({"launch.min_dp=1", "train.gradient_accumulation_steps=3"}, kThree);
  const auto half = launch::fit_to_hosts(whole, {1});
  EXPECT_EQ(half.student().world.dp, 2);
  EXPECT_EQ(half.train.gradient_accumulation_steps, 6);

  // Three slots are left then, and again none but one.
  const auto one = launch::fit_to_hosts(half, {0});
  EXPECT_EQ(one.student().world.dp, 1);
  EXPECT_EQ(one.train.gradient_accumulation_steps, 12);
}

TEST_F(FitToHosts, LeavesOutWhatHasNoEffectOnOneReplica) {
  const auto whole =
      recipe({"launch.min_dp=1", "train.grad_bucket_bytes=1MiB",
              "roles.student.world.distributed_optimizer=true", "launch.collective_timeout=1h"},
             kThree);
  const auto one = launch::fit_to_hosts(whole, {0});
  EXPECT_EQ(one.student().world.dp, 1);
  EXPECT_FALSE(one.student().world.distributed_optimizer);
}

TEST_F(FitToHosts, GoesNoLowerThanTheRecipeSays) {
  const auto whole = recipe({"launch.min_dp=2"}, kThree);
  expect_error(ErrorCode::kUnavailable,
               "the run cannot go on without the lost hosts: roles.student does not fit",
               [&] { launch::fit_to_hosts(whole, {0}); });
}

TEST_F(FitToHosts, RefusesALowestDpThatNoBatchCanKeep) {
  const auto whole = recipe({"launch.min_dp=3"}, kThree);
  expect_error(ErrorCode::kInvalidArgument, "launch.min_dp: 3 allows no smaller dp",
               [&] { launch::check_min_dp(whole); });
  launch::check_min_dp(recipe({"launch.min_dp=1"}, kThree));
  launch::check_min_dp(recipe({"launch.min_dp=4"}, kThree));
}

}  // namespace
}  // namespace retort::test
