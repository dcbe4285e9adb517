// roles.<name>.devices in a recipe: what is refused, who shares out the devices of a host, and what
// a plan says of it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "launch/backends/role_variables.h"
#include "launch/placement/placement.h"
#include "launch/plan/device_plan.h"
#include "recipes/roles/device_users.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using Devices = std::vector<int64_t>;

class RoleDevices : public RecipeTest {
 protected:
  static constexpr const char* kStudent = "roles.student.world={dp: 2, device: cuda}";
  static constexpr const char* kTeacher = "roles.teacher.world={dp: 2, device: cuda}";

  recipes::Recipe on_devices(const std::vector<std::string>& more = {}) {
    std::vector<std::string> overrides{kStudent, kTeacher};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load(kDistill, overrides, {.cuda = true});
  }
  void expect_refused(const std::vector<std::string>& overrides, const std::string& part) {
    const std::string message =
        message_of([&] { load(kDistill, overrides, {.cuda = true}); }, ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
};

TEST_F(RoleDevices, AreRefusedAtTheirPlace) {
  expect_refused({"roles.teacher.devices=[0, 1]"},
                 "roles.teacher.devices: has no effect with world.device: cpu");
  expect_refused({kTeacher, "roles.teacher.devices=[0, -1]"}, "-1 is no device");
  expect_refused({kTeacher, "roles.teacher.devices=[3, 3]"}, "device 3 is there twice");
  expect_refused({kTeacher, "roles.teacher.devices=[3]"},
                 "roles.teacher.devices: names 1 devices, but 2 ranks of the role are on the host");
  expect_refused({kTeacher, "roles.teacher.devices=[0, 1]", "launch.backend=slurm"},
                 "is not for launch.backend: slurm");
  const std::vector<std::string> one_each{
      kStudent, "launch.backend=ssh",
      "launch.hosts=[{host: h1, slots: 1}, {host: h2, slots: 1}, "
      "{host: h3, slots: 2}]",
      "roles.student.devices=[3]"};
  EXPECT_NO_THROW(load(kDistill, one_each, {.cuda = true})) << "each host has a rank of it";
}

TEST_F(RoleDevices, AreForTheHostsThatARoleIsOn) {
  expect_refused({kStudent, "launch.backend=ssh", "launch.hosts=[{host: h1, slots: 4}]",
                  "roles.student.devices=[3]"},
                 "roles.student does not fit: its rank 1 needs 1 slot(s) of one host, and free are "
                 "h1 3 of 4; its `devices` name 1 of a host");
  // Whoever joins a run says where it is.
  EXPECT_NO_THROW(load(kDistill, std::vector<std::string>{kStudent, "roles.student.devices=[3]"},
                       {.cuda = true, .is_launched = false}));
}

TEST_F(RoleDevices, RolesOfAHostTakeTheirsTheStudentFirst) {
  const recipes::Recipe recipe = on_devices();
  const auto users = recipes::device_users(recipe, "teacher", launch::all_ranks(recipe));
  ASSERT_EQ(users.size(), 2u);
  EXPECT_EQ(users[0].role, "student");
  EXPECT_EQ(users[0].ranks, 2);
  EXPECT_EQ(users[1].role, "teacher");
  // A rank that does not know who else is there has its own role alone.
  EXPECT_EQ(recipes::device_users(recipe, "teacher", {}).size(), 1u);
}

TEST_F(RoleDevices, WhatSeesItsOwnTakesNoneFromOthers) {
  const recipes::Recipe recipe = on_devices({"roles.student.env={CUDA_VISIBLE_DEVICES: '4,5'}"});
  for (const char* role : {"student", "teacher"}) {
    const auto users = recipes::device_users(recipe, role, launch::all_ranks(recipe));
    ASSERT_EQ(users.size(), 1u) << role;
    EXPECT_EQ(users[0].role, role);
  }
  const auto plans = launch::plan_devices(recipe, "student");
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].devices, (Devices{0, 1}));
  EXPECT_TRUE(plans[0].own);
}

TEST_F(RoleDevices, APlanNamesThem) {
  const recipes::Recipe recipe = on_devices({"roles.student.devices=[1, 3]"});
  EXPECT_EQ(launch::plan_devices(recipe, "student").at(0).devices, (Devices{1, 3}));
  EXPECT_EQ(launch::plan_devices(recipe, "teacher").at(0).devices, (Devices{0, 2}));
  EXPECT_EQ(launch::plan_devices(load(kDistill), "student").size(), 0u) << "on the CPU";
}

TEST_F(RoleDevices, APlanCountsOnEachHost) {
  const recipes::Recipe recipe = on_devices(
      {"launch.backend=ssh", "launch.hosts=[{host: h1, slots: 3}, {host: h2, slots: 1}]"});
  const auto plans = launch::plan_devices(recipe, "teacher");
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].host, "h1");
  EXPECT_EQ(plans[0].devices, Devices{2}) << "behind the student's two";
  EXPECT_EQ(plans[1].host, "h2");
  EXPECT_EQ(plans[1].devices, Devices{0});
}

// The student's tp and dp overlap; a teacher's dp are replicas, which have no group.
TEST_F(RoleDevices, NcclIsToldWhatTheRunIs) {
  using Variables = std::map<std::string, std::string>;
  const auto told = [](const recipes::Recipe& recipe, const std::string& role) {
    Variables nccl;
    for (const auto& [name, value] : launch::role_variables(recipe, recipe.roles.at(role)))
      if (name.starts_with("NCCL_")) nccl.emplace(name, value);
    return nccl;
  };
  // Of one rank in tp, then of two, which the models of these tests do not have.
  recipes::Recipe recipe = on_devices();
  EXPECT_EQ(told(recipe, "student"), Variables{});
  for (const char* role : {"student", "teacher"})
    recipe.roles.at(role).world.tp = 2;
  EXPECT_EQ(told(recipe, "student"), (Variables{{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}));
  EXPECT_EQ(told(recipe, "teacher"), Variables{});

  recipe.deterministic = true;
  recipe.roles.at("student").env["NCCL_PROTO"] = "LL";
  recipe.roles.at("teacher").world.device = parallel::Device::kCpu;
  EXPECT_EQ(
      told(recipe, "student"),
      (Variables{{"NCCL_ALGO", "Ring"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}, {"NCCL_PROTO", "LL"}}))
      << "what the recipe sets stays";
  EXPECT_EQ(told(recipe, "teacher"), Variables{}) << "it is on the CPU";
}

}  // namespace
}  // namespace retort::test
