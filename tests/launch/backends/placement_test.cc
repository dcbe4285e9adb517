// Which host each process is placed on, and the life signs between hosts.
#include "launch/placement/placement.h"

#include <gtest/gtest.h>

#include "launch/ssh/heartbeat_clock.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using recipes::HostOptions;

struct RoleSize {
  std::string name;
  int64_t tp = 1, dp = 1;
  std::vector<std::string> hosts = {};
  std::vector<int64_t> devices = {};
};

recipes::Recipe recipe_of(const std::vector<int64_t>& slots, const std::vector<RoleSize>& roles) {
  recipes::Recipe recipe;
  for (size_t i = 0; i < slots.size(); ++i)
    recipe.launch.hosts.push_back({.host = "h" + std::to_string(i), .slots = slots[i]});
  for (const RoleSize& role : roles) {
    recipe.roles[role.name].world.tp = role.tp;
    recipe.roles[role.name].world.dp = role.dp;
    recipe.roles[role.name].hosts = role.hosts;
    recipe.roles[role.name].devices = role.devices;
  }
  return recipe;
}

std::vector<size_t> placed(const launch::Placement& placement, const std::string& role) {
  return placement.hosts.at(role);
}

using Hosts = std::vector<size_t>;

TEST(Placement, FillsHostsInTheirOrderWithRolesInTheirs) {
  const auto placement =
      launch::place_processes(recipe_of({3, 4}, {{"student", 1, 4}, {"teacher", 1, 2}}));
  EXPECT_EQ(placed(placement, "student"), (Hosts{0, 0, 0, 1}));
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{1, 1}));
  EXPECT_EQ(placement.processes, (std::vector<int64_t>{3, 3}));
}

TEST(Placement, KeepsTpRanksOnOneHostAndLetsOthersFillTheGap) {
  const auto placement =
      launch::place_processes(recipe_of({3, 4}, {{"student", 2, 2}, {"teacher", 1, 2}}));
  EXPECT_EQ(placed(placement, "student"), (Hosts{0, 0, 1, 1}));
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{0, 1}));
}

TEST(Placement, GoesWhereARoleSays) {
  const auto placement = launch::place_processes(
      recipe_of({2, 2, 2}, {{"student", 1, 2, {"h2", "h1"}}, {"teacher", 1, 1, {"h2"}}}));
  EXPECT_EQ(placed(placement, "student"), (Hosts{1, 1}));
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{2}));
}

// No more ranks on a host than devices are named; a replica that moves finds a host with one left.
TEST(Placement, GivesEachRankANamedDevice) {
  const auto recipe =
      recipe_of({4, 4}, {{.name = "student"}, {.name = "teacher", .dp = 2, .devices = {4}}});
  launch::Placement placement = launch::place_processes(recipe);
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{0, 1}));

  const std::vector<int64_t> ranks{0};
  const auto refused =
      test::thrown([&] { launch::place_again(recipe, "teacher", ranks, {0}, placement); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), ErrorCode::kUnavailable);
  EXPECT_NE(refused->message().find("its `devices` name 1 of a host"), std::string::npos)
      << refused->message();
  auto more = recipe;
  more.roles["teacher"].devices = {4, 5};
  launch::place_again(more, "teacher", ranks, {0}, placement);
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{1, 1}));
}

TEST(Placement, NamesWhatDoesNotFit) {
  expect_refused(
      "roles.teacher does not fit: its rank 2, with the tp ranks beside it, needs 2 slot(s) of one "
      "host, and free are h0 1 of 3, h1 1 of 3",
      [] {
        launch::place_processes(recipe_of({3, 3}, {{"student", 2, 1}, {"teacher", 2, 2}}));
      });
}

// What is told of the rest of a replica's ranks when its host is lost.
TEST(PlaceAgain, MovesWhatWasOnALostHostToFreeSlots) {
  const auto recipe = recipe_of({3, 2, 3}, {{"student", 1, 2}, {"teacher", 2, 2}});
  auto placement = launch::place_processes(recipe);
  ASSERT_EQ(placed(placement, "teacher"), (Hosts{1, 1, 2, 2}));
  // The first replica's two ranks need a host of their own again, and there is none.
  const std::vector<int64_t> first{0, 1}, second{2, 3};
  expect_error(
      ErrorCode::kUnavailable,
      "roles.teacher does not fit: its rank 0, with the tp ranks beside it, needs 2 slot(s) of one "
      "host, and free are h0 1 of 3, h1 none, being lost, h2 1 of 3",
      [&] { launch::place_again(recipe, "teacher", first, {1}, placement); });
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{1, 1, 2, 2}));

  // A replica whose host lives stays where it is.
  launch::place_again(recipe, "teacher", second, {1}, placement);
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{1, 1, 2, 2}));

  const auto roomy = recipe_of({3, 2, 4}, {{"student", 1, 2}, {"teacher", 2, 2}});
  launch::place_again(roomy, "teacher", first, {1}, placement);
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{2, 2, 2, 2}));
  EXPECT_EQ(placement.processes[2], 4);
}

TEST(PlaceAgain, KeepsToTheHostsOfTheRole) {
  const auto recipe = recipe_of({2, 1, 1}, {{"student", 1, 1}, {"teacher", 1, 1, {"h1", "h2"}}});
  auto placement = launch::place_processes(recipe);
  const std::vector<int64_t> ranks{0};
  launch::place_again(recipe, "teacher", ranks, {1}, placement);
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{2}));
  EXPECT_THROW(launch::place_again(recipe, "teacher", ranks, {1, 2}, placement), Error);
}

TEST(Placement, UsesNoLostHost) {
  const auto recipe = recipe_of({2, 2, 2}, {{"student", 1, 2}, {"teacher", 1, 1}});
  const auto placement = launch::place_processes(recipe, {0});
  EXPECT_EQ(placed(placement, "student"), (Hosts{1, 1}));
  EXPECT_EQ(placed(placement, "teacher"), (Hosts{2}));
}

TEST(HeartbeatClock, AreSilentAfterTheLimitButNotForTimeInWhichNobodyLooked) {
  using std::chrono::seconds;
  launch::HeartbeatClock::Clock::time_point now{seconds(1000)};
  launch::HeartbeatClock signs(Duration(1'000), Duration(15'000), now);
  EXPECT_TRUE(signs.due());
  EXPECT_FALSE(signs.due());
  for (int i = 0; i < 15; ++i)
    signs.look(now += seconds(1));
  EXPECT_TRUE(signs.due());
  EXPECT_FALSE(signs.silent());
  signs.look(now += seconds(60));  // this process stood still
  EXPECT_FALSE(signs.silent());
  signs.look(now += seconds(1));
  EXPECT_TRUE(signs.silent());
  signs.heard();
  EXPECT_FALSE(signs.silent());
}

}  // namespace
}  // namespace retort::test
