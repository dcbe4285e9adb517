// Device maps between processes that number the devices of a host in one order, in another, or see
// only some of them.
#include "rpc/detail/device_numbering.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/thrown.h"

namespace retort::rpc::detail {
namespace {

using Ids = std::vector<std::string>;

SeenDevices student(const Ids& ids) { return {.process = "student/0", .ids = ids}; }
SeenDevices teacher(const Ids& ids) { return {.process = "teacher/1", .ids = ids}; }

TEST(DeviceNumbering, OneOrderIsAccepted) {
  const Ids all{"GPU-a", "GPU-b", "GPU-c"};
  for (const auto& map : std::vector<std::map<std::string, int64_t>>{
           {{"0", 0}}, {{"0", 1}, {"1", 0}}, {{"0", 1}, {"1", 2}, {"2", 0}}, {}})
    EXPECT_NO_THROW(check_numbering(map, student(all), teacher(all)));
}

// Where a process is shown some of the devices only, its numbers are its own: the device of the
// student's index 0 may be another one than that of the teacher's.
TEST(DeviceNumbering, APartOfTheDevicesInTheSameOrderIsAccepted) {
  const Ids all{"GPU-a", "GPU-b", "GPU-c"};
  EXPECT_NO_THROW(check_numbering({{"0", 0}}, student(all), teacher({"GPU-b"})));
  EXPECT_NO_THROW(check_numbering({{"1", 0}}, student(all), teacher({"GPU-b"})));
  EXPECT_NO_THROW(check_numbering({{"2", 1}}, student(all), teacher({"GPU-b", "GPU-c"})));
  EXPECT_NO_THROW(check_numbering({{"0", 0}}, student({"GPU-a"}), teacher({"GPU-b"})));
  EXPECT_NO_THROW(
      check_numbering({{"0", 1}}, student({"GPU-a", "GPU-b"}), teacher({"GPU-c", "GPU-a"})));
}

TEST(DeviceNumbering, TwoHostsHaveNothingInCommon) {
  EXPECT_NO_THROW(check_numbering({{"0", 1}, {"1", 0}}, student({"GPU-a", "GPU-b"}),
                                  teacher({"GPU-d", "GPU-c"})));
}

TEST(DeviceNumbering, AnotherOrderIsRefusedAndNamesBoth) {
  const Error error = test::error_of([] {
    check_numbering({{"0", 0}}, student({"GPU-a", "GPU-b"}), teacher({"GPU-b", "GPU-a"}));
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  for (const char* part :
       {"rpc.device_maps.teacher joins device 0 of student/0 (GPU-a) with device 0 of teacher/1 "
        "(GPU-b)",
        "GPU-a is 0 for student/0 and 1 for teacher/1", "CUDA_VISIBLE_DEVICES"})
    EXPECT_NE(error.message().find(part), std::string::npos) << part << "\n" << error.message();

  // Also where the map was written for it, and beside devices that only one of them sees.
  const auto refused = [](const std::map<std::string, int64_t>& map, const Ids& here,
                          const Ids& there) {
    test::expect_refused("in another order",
                         [&] { check_numbering(map, student(here), teacher(there)); });
  };
  refused({{"0", 1}}, {"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"});
  refused({{"2", 0}}, {"GPU-a", "GPU-b", "GPU-c"}, {"GPU-c", "GPU-d", "GPU-b"});
  refused({{"0", 0}, {"1", 1}}, {"GPU-d", "GPU-a", "GPU-b"}, {"GPU-c", "GPU-b", "GPU-a"});
}

// Devices that no entry names may stand in any order.
TEST(DeviceNumbering, OnlyDevicesOfTheMapCount) {
  EXPECT_NO_THROW(check_numbering({{"0", 0}}, student({"GPU-a", "GPU-b", "GPU-c"}),
                                  teacher({"GPU-a", "GPU-c", "GPU-b"})));
}

TEST(DeviceNumbering, ADeviceThatIsNotThereIsRefused) {
  test::expect_refused(
      "rpc.device_maps.teacher names device 2 of teacher/1, which sees 2 devices", [] {
        check_numbering({{"0", 2}}, student({"GPU-a"}), teacher({"GPU-a", "GPU-b"}));
      });
  test::expect_refused("names device 0 of teacher/1, which sees 0 devices", [] {
    check_numbering({{"0", 0}}, student({"GPU-a"}), teacher({}));
  });
  test::expect_refused("names device 1 of student/0, which sees 1 devices", [] {
    check_numbering({{"1", 0}}, student({"GPU-a"}), teacher({"GPU-a"}));
  });
}

TEST(DeviceNumbering, TheLogNamesEachPair) {
  const Ids all{"GPU-a", "GPU-b"};
  EXPECT_EQ(map_text({{"0", 1}, {"1", 0}}, student(all), teacher(all)),
            "0 of student/0 (GPU-a) is 1 of teacher/1 (GPU-b), "
            "1 of student/0 (GPU-b) is 0 of teacher/1 (GPU-a)");
}

}  // namespace
}  // namespace retort::rpc::detail
