// How roles share out the devices of a host.
#include "parallel/role_devices.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/device_module.h"
#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

using Devices = std::vector<int64_t>;
using Roles = std::vector<std::string>;

const std::vector<DeviceUser> kFourEach{{.role = "student", .ranks = 4},
                                        {.role = "teacher", .ranks = 4}};

TEST(RoleDevices, RolesTakeTheirsOneAfterTheOther) {
  EXPECT_EQ(taken_devices(kFourEach, "student", 8), (Devices{0, 1, 2, 3}));
  EXPECT_EQ(taken_devices(kFourEach, "teacher", 8), (Devices{4, 5, 6, 7}));
  EXPECT_EQ(other_roles_on(kFourEach, "teacher", 8, 4), Roles{});
}

TEST(RoleDevices, BeginAgainWhereThereAreFewer) {
  EXPECT_EQ(taken_devices(kFourEach, "student", 6), (Devices{0, 1, 2, 3}));
  EXPECT_EQ(taken_devices(kFourEach, "teacher", 6), (Devices{4, 5, 0, 1}));
  EXPECT_EQ(other_roles_on(kFourEach, "student", 6, 1), Roles{"teacher"});
  EXPECT_EQ(other_roles_on(kFourEach, "student", 6, 2), Roles{});

  const std::vector<DeviceUser> one_each{{.role = "student", .ranks = 1},
                                         {.role = "teacher", .ranks = 1}};
  EXPECT_EQ(taken_devices(one_each, "teacher", 1), Devices{0});
  EXPECT_EQ(other_roles_on(one_each, "teacher", 1, 0), Roles{"student"});
}

TEST(RoleDevices, WhatARoleNamesIsLeftToIt) {
  const std::vector<DeviceUser> users{{.role = "student", .ranks = 2},
                                      {.role = "teacher", .ranks = 2, .devices = {3, 0}},
                                      {.role = "generator", .ranks = 1}};
  EXPECT_EQ(taken_devices(users, "student", 8), (Devices{1, 2}));
  EXPECT_EQ(taken_devices(users, "teacher", 8), (Devices{3, 0}));
  EXPECT_EQ(taken_devices(users, "generator", 8), Devices{4});
  EXPECT_EQ(taken_devices(users, "generator", 4), Devices{1}) << "after the last the first again";
  EXPECT_EQ(devices_for(users, "student", 0), Devices{});
}

TEST(RoleDevices, WithoutOthersAllAreTheRoles) {
  EXPECT_EQ(devices_for({{.role = "student"}}, "student", 3), (Devices{0, 1, 2}));
}

// What choose_device says of a role of which all `ranks` are on one host.
Error refusal(const std::vector<DeviceUser>& users, const std::string& role, int64_t num_devices,
              size_t ranks) {
  const std::vector<RankHost> hosts(ranks, rank_host("a", num_devices, users, role));
  return test::error_of([&] { choose_device(hosts, 0, false); });
}

TEST(RoleDevices, ErrorsNameTheNumbers) {
  const std::vector<DeviceUser> users{{.role = "student", .ranks = 2, .devices = {0, 7}},
                                      {.role = "teacher", .ranks = 3}};
  const auto expect = [](const Error& error, ErrorCode code, const std::string& part) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  };
  expect(refusal(users, "student", 4, 2), ErrorCode::kUnavailable,
         "name device 7, but a host has 4 devices");
  expect(refusal(users, "student", 8, 3), ErrorCode::kInvalidArgument,
         "name 2 devices, but the role has 3 ranks on a host");
  expect(refusal(users, "teacher", 3, 3), ErrorCode::kUnavailable,
         "the role has 3 ranks on a host with 3 devices, of which `devices` of other roles name 1");
  expect(refusal(users, "teacher", 1, 1), ErrorCode::kUnavailable,
         "the role has 1 ranks on a host with 1 devices, all of which");
}

TEST(RoleDevices, ARankTakesTheOneAtItsNumber) {
  const RankHost a = rank_host("a", 8, {{.role = "student", .devices = {5, 2}}}, "student");
  const RankHost b = rank_host("b", 8, {{.role = "student", .devices = {5, 2}}}, "student");
  const Devices expected{5, 5, 2};
  for (int64_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(choose_device({a, b, a}, rank, false).index, expected[static_cast<size_t>(rank)]);
}

}  // namespace
}  // namespace retort::parallel
