// What can be said of devices without one: who gets which, how a hung or failed collective is
// reported, a missing module.
#include "parallel/device_module.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/detail/device_backends.h"
#include "parallel/detail/device_setup.h"
#include "parallel/detail/device_watch.h"
#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

using namespace std::chrono_literals;
using detail::DeviceWatch;
using test::error_of;

std::string value_of(const Error& error, const std::string& key) {
  for (const auto& [name, value] : error.context())
    if (name == key) return value;
  return "(no " + key + ")";
}

// Of a role that shares its hosts with no other.
RankHost on(const std::string& host, int64_t num_devices) {
  return rank_host(host, num_devices, {{.role = "student"}}, "student");
}

TEST(ChooseDevice, RanksOfAHostCountThroughItsDevices) {
  const std::vector<RankHost> ranks{on("a", 2), on("b", 4), on("a", 2), on("b", 4), on("b", 4)};
  const std::vector<int64_t> expected{0, 0, 1, 1, 2};
  for (int64_t r = 0; r < 5; ++r) {
    const DeviceChoice choice = choose_device(ranks, r, false);
    EXPECT_EQ(choice.index, expected[to_size(r)]) << r;
    EXPECT_FALSE(choice.shared);
  }
}

TEST(ChooseDevice, MoreRanksThanDevicesNamesBothNumbers) {
  const std::vector<RankHost> ranks{on("a", 2), on("a", 2), on("a", 2), on("b", 1)};
  for (int64_t r = 0; r < 4; ++r) {  // on every rank, also on the host that has enough
    const Error error = error_of([&] { choose_device(ranks, r, false); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_NE(error.message().find("3 ranks on a host with 2 devices"), std::string::npos)
        << error.message();
    EXPECT_EQ(value_of(error, "host"), "a");
  }
}

TEST(ChooseDevice, SharedWhereAllowedAndThenOnEveryRank) {
  const std::vector<RankHost> ranks{on("a", 2), on("a", 2), on("a", 2), on("b", 1)};
  const std::vector<int64_t> expected{0, 1, 0, 0};
  for (int64_t r = 0; r < 4; ++r) {
    const DeviceChoice choice = choose_device(ranks, r, true);
    EXPECT_EQ(choice.index, expected[to_size(r)]) << r;
    EXPECT_TRUE(choice.shared) << "NCCL needs all ranks of a group or none";
  }
}

TEST(ChooseDevice, AHostWithoutDevicesIsAnError) {
  const Error error = error_of([] { choose_device({on("a", 1), on("b", 0)}, 0, true); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(value_of(error, "host"), "b");
}

class FakeBackends final : public detail::DeviceBackends {
 public:
  at::DeviceType device_type() const override { return at::kCUDA; }
  std::string versions() const override { return "none"; }
  int64_t num_devices() const override { return 3; }
  void use_device(int64_t index) override { used = index; }
  void synchronize() override {}
  int64_t peak_bytes() const override { return 0; }
  c10::intrusive_ptr<c10d::Backend> connect(const detail::DeviceGroupSpec&,
                                            const c10::intrusive_ptr<c10d::Store>&) override {
    return {};
  }
  int64_t used = -1;
};

TEST(TakeDevice, ARankAloneTakesTheFirst) {
  auto owned = std::make_unique<FakeBackends>();
  const FakeBackends& fake = *owned;
  DeviceModule module(std::move(owned));
  const DeviceChoice choice = detail::take_device(
      module, nullptr, {.role = "student", .users = {{.role = "student"}}}, Deadline::after(1s));
  EXPECT_EQ(choice.index, 0);
  EXPECT_EQ(fake.used, 0);
}

TEST(TakeDevice, RanksAgreeThroughTheStore) {
  StoreServer server("127.0.0.1");
  std::vector<DeviceChoice> choices(3);
  std::vector<std::thread> ranks;
  for (int64_t r = 0; r < 3; ++r)
    ranks.emplace_back([&, r] {
      DeviceModule module(std::make_unique<FakeBackends>());
      StoreClient store("127.0.0.1", server.port(), "run/student/0/", 60s);
      const detail::DeviceTaker taker{
          .role = "teacher",
          .users = {{.role = "student", .ranks = 1}, {.role = "teacher", .ranks = 3}},
          .rank = r,
          .size = 3};
      choices[to_size(r)] = detail::take_device(module, &store, taker, Deadline::after(60s));
    });
  for (auto& rank : ranks)
    rank.join();
  for (int64_t r = 0; r < 3; ++r)
    EXPECT_EQ(choices[to_size(r)].index, (r + 1) % 3) << "behind the student's";
}

TEST(DeviceModule, AMissingFileSaysSo) {
  const Error error = error_of([] { DeviceModule::load("/nonexistent/libretort_cuda.so"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(error.what()).find("/nonexistent/libretort_cuda.so"), std::string::npos)
      << error.what();
}

TEST(DeviceModule, AWorldWithoutItIsUnavailable) {
  World::Options options{.role = "student"};
  options.layout.device = Device::kCuda;
  const Error error = error_of([&] { World world(options); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("retort_cuda"), std::string::npos) << error.message();
}

TEST(DeviceModule, AWorldOfOneRankHasItsDevice) {
  World::Options options{.role = "student"};
  options.layout.device = Device::kCuda;
  options.device_module = std::make_shared<DeviceModule>(std::make_unique<FakeBackends>());
  World world(options);
  EXPECT_EQ(world.device(), at::Device(at::kCUDA, 0));
  EXPECT_EQ(World(World::Options{.role = "student"}).device(), at::Device(at::kCPU));
}

// An operation on a device that ends when the test says so.
class FakeWork final : public c10d::Work {
 public:
  bool isCompleted() override { return completed; }
  void fail(const std::string& why) {
    std::lock_guard lock(mutex_);
    exception_ = std::make_exception_ptr(std::runtime_error(why));
  }
  std::atomic<bool> completed{false};
};

class FakeBackend final : public c10d::Backend {
 public:
  FakeBackend() : Backend(0, 2) {}
  void abort() override { aborted = true; }
  std::atomic<bool> aborted{false};
};

struct Watched {
  explicit Watched(std::chrono::milliseconds timeout) {
    dp = watch.add_group("student.dp", 3, timeout, dp_backend);
    tp = watch.add_group("student.tp", 3, 1h, tp_backend);
  }
  c10::intrusive_ptr<FakeWork> queue(uint64_t sequence, bool completed = false,
                                     const std::string& error = "") {
    auto work = c10::make_intrusive<FakeWork>();
    work->completed = completed;
    if (!error.empty()) work->fail(error);
    watch.add(*dp, {work, "all_reduce", "Float[8, 2]", sequence});
    return work;
  }
  std::optional<Error> failure_within(std::chrono::milliseconds limit) {
    for (const auto end = std::chrono::steady_clock::now() + limit;
         std::chrono::steady_clock::now() < end;) {
      if (auto found = watch.failure()) return found;
      std::this_thread::sleep_for(1ms);
    }
    return std::nullopt;
  }
  c10::intrusive_ptr<FakeBackend> dp_backend = c10::make_intrusive<FakeBackend>();
  c10::intrusive_ptr<FakeBackend> tp_backend = c10::make_intrusive<FakeBackend>();
  DeviceWatch watch{1ms};
  std::shared_ptr<detail::WatchedGroup> dp, tp;
};

TEST(DeviceWatch, ATimeoutNamesTheOperationAndAbortsAllGroups) {
  Watched w(2s);  // in which all four are queued
  w.queue(955, true);
  w.queue(956, true);
  const auto hung = w.queue(957);
  const auto behind = w.queue(958);
  const auto error = w.failure_within(30s);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  for (const auto& [key, value] : std::map<std::string, std::string>{{"group", "student.dp"},
                                                                     {"rank", "3"},
                                                                     {"op", "all_reduce"},
                                                                     {"sequence", "957"},
                                                                     {"shape", "Float[8, 2]"},
                                                                     {"last_queued", "958"},
                                                                     {"last_completed", "956"}})
    EXPECT_EQ(value_of(*error, key), value) << error->what();
  for (int i = 0; i < 30000 && !(w.dp_backend->aborted && w.tp_backend->aborted); ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(w.dp_backend->aborted);
  EXPECT_TRUE(w.tp_backend->aborted) << "its kernels may wait for the group that failed";
}

TEST(DeviceWatch, AnExceptionIsPassedOnBeforeTheTimeout) {
  Watched w(1h);
  w.queue(1, false, "NCCL error: remote process exited\nbacktrace");
  const auto error = w.failure_within(30s);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kCollective);
  EXPECT_NE(error->message().find("remote process exited"), std::string::npos) << error->message();
  EXPECT_EQ(error->message().find("backtrace"), std::string::npos);
}

TEST(DeviceWatch, WhatCompletesInTimeIsForgotten) {
  Watched w(1h);
  for (uint64_t i = 1; i <= 50; ++i)
    w.queue(i, true);
  EXPECT_FALSE(w.failure_within(100ms).has_value());
  EXPECT_FALSE(w.dp_backend->aborted);
  w.watch.stop();
  w.watch.stop();
  w.queue(51, false, "asked after the end");
  EXPECT_FALSE(w.failure_within(20ms).has_value());
}

}  // namespace
}  // namespace retort::parallel
