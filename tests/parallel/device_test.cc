// What can be said of devices without one: who gets which, how a hung or failed collective is
// reported, a missing module.
#include "parallel/device_module.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/detail/device_backends.h"
#include "parallel/detail/device_setup.h"
#include "parallel/detail/device_watch.h"
#include "tests/parallel/plain_backends.h"
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

class FakeBackends final : public testing::PlainBackends {
 public:
  int64_t num_devices() const override { return 3; }
  void use_device(int64_t index) override { used = index; }
  void use_device_in_thread() override {
    std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  void abort(const std::vector<c10::intrusive_ptr<c10d::Backend>>& groups) override {
    EXPECT_TRUE(is_used_here());
    num_aborts += 1;
    for (const auto& group : groups)
      group->abort();
  }
  bool is_used_here() {
    std::lock_guard lock(mutex_);
    return threads_.count(std::this_thread::get_id()) > 0;
  }
  int64_t used = -1;
  std::atomic<int> num_aborts{0};

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
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

bool soon(const std::function<bool()>& condition, std::chrono::milliseconds limit = 30s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  return condition();
}

// What stands in a call of the driver stands here, while it is shut.
class Gate {
 public:
  void shut() { shut_ = true; }
  void open() { shut_ = false; }
  void pass() {
    while (shut_)
      std::this_thread::sleep_for(1ms);
  }

 private:
  std::atomic<bool> shut_{false};
};

// An operation on a device that ends when the test says so.
class FakeWork final : public c10d::Work {
 public:
  FakeWork(FakeBackends& backends, Gate& driver) : backends_(backends), driver_(driver) {}
  ~FakeWork() override {
    if (frees_memory) driver_.pass();
  }
  bool isCompleted() override {
    EXPECT_TRUE(backends_.is_used_here()) << "the device of the process is not that of this thread";
    if (!answers) driver_.pass();
    std::this_thread::sleep_for(answers_after);
    return completed;
  }
  void fail(const std::string& why) {
    std::lock_guard lock(mutex_);
    exception_ = std::make_exception_ptr(std::runtime_error(why));
  }
  std::atomic<bool> completed{false};
  bool answers = true;  // though the driver is shut
  bool frees_memory = false;
  std::chrono::milliseconds answers_after{0};

 private:
  FakeBackends& backends_;
  Gate& driver_;
};

class FakeBackend final : public c10d::Backend {
 public:
  explicit FakeBackend(FakeBackends& backends) : Backend(0, 2), backends_(backends) {}
  void abort() override {
    aborts.pass();
    aborted = true;
    if (abort_frees) peer.open();
  }
  void shutdown() override {
    EXPECT_TRUE(backends_.is_used_here());
    peer.pass();
    has_shut_down = true;
  }
  Gate aborts, peer;
  std::atomic<bool> aborted{false}, has_shut_down{false};
  bool abort_frees = true;  // what waits for the peer

 private:
  FakeBackends& backends_;
};

struct Watched {
  explicit Watched(std::chrono::milliseconds timeout, std::chrono::milliseconds exit_limit = 10min,
                   std::chrono::milliseconds interval = 1ms)
      : watch(backends, {.interval = interval, .exit_limit = exit_limit, .exit_process = [this] {
                           ++num_exits;
                         }}) {
    dp = watch.add_group("student.dp", 3, timeout, dp_backend);
    tp = watch.add_group("student.tp", 3, timeout, tp_backend);
  }
  ~Watched() {
    for (Gate* gate : {&driver, &dp_backend->aborts, &tp_backend->aborts})
      gate->open();
  }
  c10::intrusive_ptr<FakeWork> new_work() {
    return c10::make_intrusive<FakeWork>(backends, driver);
  }
  void add(detail::WatchedGroup& group, c10::intrusive_ptr<FakeWork> work, uint64_t sequence) {
    watch.add(group, {std::move(work), "all_reduce", "Float[8, 2]", sequence});
  }
  c10::intrusive_ptr<FakeWork> queue(uint64_t sequence, bool completed = false,
                                     const std::string& error = "") {
    auto work = new_work();
    work->completed = completed;
    if (!error.empty()) work->fail(error);
    add(*dp, work, sequence);
    return work;
  }
  // Asking for it says that this thread has come back.
  std::optional<Error> failure_within(std::chrono::milliseconds limit = 30s) {
    std::optional<Error> found;
    soon([&] { return (found = watch.failure()).has_value(); }, limit);
    return found;
  }
  bool both_aborted() const { return dp_backend->aborted && tp_backend->aborted; }

  Gate driver;
  FakeBackends backends;
  std::atomic<int> num_exits{0};
  c10::intrusive_ptr<FakeBackend> dp_backend = c10::make_intrusive<FakeBackend>(backends);
  c10::intrusive_ptr<FakeBackend> tp_backend = c10::make_intrusive<FakeBackend>(backends);
  DeviceWatch watch;
  std::shared_ptr<detail::WatchedGroup> dp, tp;
};

void expect_context(const Error& error, const std::map<std::string, std::string>& context) {
  for (const auto& [key, value] : context)
    EXPECT_EQ(value_of(error, key), value) << error.what();
}

bool says(const Error& error, const std::string& text) {
  return error.message().find(text) != std::string::npos;
}

TEST(DeviceWatch, ATimeoutNamesTheOperationAndAbortsAllGroups) {
  Watched w(2s);  // in which all four are queued
  w.queue(955, true);
  w.queue(956, true);
  const auto hung = w.queue(957);
  const auto behind = w.queue(958);
  const auto error = w.failure_within(30s);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  expect_context(*error, {{"group", "student.dp"},
                          {"rank", "3"},
                          {"op", "all_reduce"},
                          {"sequence", "957"},
                          {"shape", "Float[8, 2]"},
                          {"last_queued", "958"},
                          {"last_completed", "956"}});
  EXPECT_TRUE(says(*error, "has not completed within 2000 ms")) << error->what();
  EXPECT_FALSE(says(*error, "did not answer")) << error->what();
  EXPECT_TRUE(soon([&] { return w.both_aborted(); }))
      << "the other's kernels may wait for the group that failed";
  EXPECT_EQ(w.backends.num_aborts, 1) << "all groups at once";
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

TEST(DeviceWatch, ADeviceThatDoesNotAnswerIsTold) {
  Watched w(500ms);
  w.driver.shut();
  const auto hung = w.new_work();
  hung->answers = false;
  w.add(*w.dp, hung, 2);
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  expect_context(*error, {{"group", "student.dp"}, {"op", "all_reduce"}, {"sequence", "2"}});
  EXPECT_TRUE(says(*error, "has not completed within 500 ms")) << error->what();
  EXPECT_TRUE(says(*error, "the device did not answer")) << error->what();
  EXPECT_TRUE(soon([&] { return w.both_aborted(); }));
}

// The memory and events of the work that has completed are freed behind the kernel that hangs.
TEST(DeviceWatch, AWorkWhoseEndWaitsForTheDeviceHidesNoTimeout) {
  Watched w(500ms);
  w.driver.shut();
  auto completed = w.new_work();
  completed->completed = true;
  completed->frees_memory = true;
  w.add(*w.dp, std::move(completed), 1);
  w.add(*w.dp, w.new_work(), 2);
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  expect_context(*error, {{"sequence", "2"}, {"last_completed", "1"}});
  EXPECT_TRUE(says(*error, "the device did not answer")) << error->what();
}

TEST(DeviceWatch, OfSeveralGroupsInFlightTheFirstThatHungIsNamed) {
  Watched w(500ms, 10min, 50ms);  // the clock finds both overdue at once
  w.driver.shut();
  const auto first = w.new_work();
  first->answers = false;
  w.add(*w.tp, first, 7);
  w.queue(4);  // of dp, which is asked before tp once and never again
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  expect_context(*error, {{"group", "student.tp"}, {"sequence", "7"}});
  EXPECT_TRUE(soon([&] { return w.both_aborted(); }));
  EXPECT_EQ(w.backends.num_aborts, 1);
}

TEST(DeviceWatch, ACallThatDoesNotReturnIsTold) {
  Watched w(100ms);
  w.watch.begin(*w.tp, {nullptr, "all_gather", "Float[4]", 1});
  w.watch.withdraw(*w.tp);  // it has thrown
  w.watch.begin(*w.dp, {nullptr, "all_reduce", "Float[4]", 3});
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  expect_context(*error, {{"group", "student.dp"}, {"op", "all_reduce"}, {"sequence", "3"}});
  EXPECT_TRUE(says(*error, "the call that queues it has not returned")) << error->what();
}

TEST(DeviceWatch, ASlowAnswerIsNoFailure) {
  Watched w(1h);
  const auto slow = w.new_work();
  slow->answers_after = 100ms;  // longer than the clock waits beyond a timeout
  w.add(*w.dp, slow, 1);
  EXPECT_FALSE(w.failure_within(500ms).has_value());
  slow->completed = true;
  w.queue(2, false, "asked after the first has completed");
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  expect_context(*error, {{"sequence", "2"}, {"last_completed", "1"}});
}

TEST(DeviceWatch, ASlowDeviceIsNotSaidToBeSilent) {
  Watched w(500ms, 10min, 100ms);
  const auto slow = w.new_work();
  slow->answers_after = 500ms;  // half of what the clock waits beyond a timeout
  w.add(*w.dp, slow, 1);
  const auto error = w.failure_within();
  ASSERT_TRUE(error.has_value());
  EXPECT_TRUE(says(*error, "has not completed within 500 ms")) << error->what();
  EXPECT_FALSE(says(*error, "did not answer")) << error->what();
}

TEST(DeviceWatch, AnAbortThatDoesNotComeBackEndsTheProcess) {
  Watched w(100ms, 200ms);
  w.tp_backend->aborts.shut();
  ::testing::internal::CaptureStderr();
  const auto hung = w.queue(2);
  EXPECT_TRUE(soon([&] { return w.num_exits > 0; }));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("aborting the groups on the device has not come back within 200 ms, so this "
                     "process ends: group=student.dp rank=3"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("sequence=2"), std::string::npos) << log;
}

TEST(DeviceWatch, AThreadThatDoesNotComeBackEndsTheProcess) {
  Watched w(100ms, 200ms);
  ::testing::internal::CaptureStderr();
  const auto hung = w.queue(2);
  EXPECT_TRUE(soon([&] { return w.num_exits > 0; }));  // and this thread asks for no failure()
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(w.both_aborted());
  EXPECT_NE(log.find("the thread that computes has not come back"), std::string::npos) << log;

  Watched other(100ms, 1s);
  const auto second = other.queue(2);
  EXPECT_TRUE(other.failure_within().has_value());
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(other.num_exits, 0);
}

TEST(DeviceWatch, AnOrderlyEndShutsTheGroupsDown) {
  Watched w(1h);
  w.queue(1, true);
  w.watch.end(false);
  w.watch.end(false);
  EXPECT_TRUE(w.dp_backend->has_shut_down && w.tp_backend->has_shut_down);
  EXPECT_EQ(w.backends.num_aborts, 0);
  EXPECT_EQ(w.num_exits, 0);

  Watched failed(1h);
  failed.watch.end(true);
  EXPECT_TRUE(failed.both_aborted());
  EXPECT_FALSE(failed.dp_backend->has_shut_down);
}

TEST(DeviceWatch, AnEndWaitsForADeadPeerOnlySoLong) {
  Watched w(100ms, 200ms);
  w.dp_backend->peer.shut();  // opened by the abort
  w.watch.end(false);
  EXPECT_TRUE(w.both_aborted());
  EXPECT_EQ(w.num_exits, 0);

  Watched stuck(100ms, 200ms);
  stuck.dp_backend->peer.shut();
  stuck.dp_backend->aborts.shut();
  std::thread ending([&] { stuck.watch.end(false); });
  EXPECT_TRUE(soon([&] { return stuck.num_exits > 0; }));
  stuck.dp_backend->aborts.open();
  ending.join();

  Watched deaf(100ms, 200ms);
  deaf.dp_backend->peer.shut();
  deaf.dp_backend->abort_frees = false;
  std::thread other([&] { deaf.watch.end(false); });
  EXPECT_TRUE(soon([&] { return deaf.num_exits > 0; }));
  EXPECT_TRUE(deaf.both_aborted());
  deaf.dp_backend->peer.open();
  other.join();
}

TEST(DeviceWatch, AnEndAbortsADeviceThatDoesNotAnswer) {
  Watched w(1h, 200ms);
  w.driver.shut();
  const auto hung = w.new_work();
  hung->answers = false;
  w.add(*w.dp, hung, 2);
  std::this_thread::sleep_for(50ms);
  std::thread ending([&] { w.watch.end(false); });
  EXPECT_TRUE(soon([&] { return w.both_aborted(); }));
  EXPECT_FALSE(w.dp_backend->has_shut_down);
  w.driver.open();
  ending.join();
}

}  // namespace
}  // namespace retort::parallel
