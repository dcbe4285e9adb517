// Groups that cannot connect on their devices, because a rank has ended.
#include "parallel/detail/connect_in_time.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "tests/parallel/plain_backends.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::parallel {
namespace {

using namespace std::chrono_literals;

// A connection that waits for a rank until the test lets it go.
class WaitingBackends final : public testing::PlainBackends {
 public:
  void use_device_in_thread() override { device_of_ = std::this_thread::get_id(); }
  c10::intrusive_ptr<c10d::Backend> connect(const detail::DeviceGroupSpec& group,
                                            const c10::intrusive_ptr<c10d::Store>&) override {
    EXPECT_EQ(device_of_, std::this_thread::get_id()) << "it uses the device of the process";
    if (group.name == "student.tp") throw Error(ErrorCode::kCollective, "of the back-end");
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !waits_; });
    return {};
  }

  void shut() {
    const std::lock_guard lock(mutex_);
    waits_ = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    waits_ = false;
    wake_.notify_all();
  }

 private:
  std::thread::id device_of_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool waits_ = false;
};

struct Connection {
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group,
                                            std::chrono::milliseconds limit) {
    return detail::connect_in_time(
        module, {.name = group, .ranks = {0, 1}, .position = 0, .timeout = limit}, {}, limit,
        {.exit_limit = exit_limit, .exit_process = [ended = ended] { *ended = true; }});
  }
  std::chrono::milliseconds exit_limit = 1h;
  std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
  WaitingBackends& backends = *new WaitingBackends;  // the module's
  std::shared_ptr<DeviceModule> module =
      std::make_shared<DeviceModule>(std::unique_ptr<detail::DeviceBackends>(&backends));
};

TEST(ConnectInTime, GivesTheConnectionOrTheErrorOfTheBackend) {
  Connection c;
  EXPECT_FALSE(c.connect("student.dp", 1h));
  test::expect_error(ErrorCode::kCollective, "of the back-end",
                     [&] { c.connect("student.tp", 1h); });
}

TEST(ConnectInTime, ARankThatDoesNotComeIsATimeout) {
  auto c = std::make_unique<Connection>();
  WaitingBackends& backends = c->backends;
  backends.shut();
  test::expect_error(ErrorCode::kTimeout,
                     "timed out: not all of the group's 2 ranks have connected their devices "
                     "within 50 ms",
                     [&] { c->connect("student.dp", 50ms); });

  // The thread that was left behind keeps what it uses: it ends well though nobody else has it.
  const std::weak_ptr<DeviceModule> module = c->module;
  c.reset();
  ASSERT_FALSE(module.expired());
  backends.open();
  EXPECT_TRUE(test::wait_until([&] { return module.expired(); }));
}

// Who was told would wait for that thread at the end.
TEST(ConnectInTime, TheProcessEndsWhereTheThreadDoesNotComeBack) {
  Connection c;
  c.exit_limit = 50ms;
  c.backends.shut();
  test::expect_error(ErrorCode::kTimeout, "timed out", [&] { c.connect("student.dp", 50ms); });
  EXPECT_TRUE(test::wait_until([&] { return c.ended->load(); }));
  c.backends.open();
  EXPECT_TRUE(test::wait_until([&] { return c.module.use_count() == 1; }));

  // One that comes back in time ends nothing.
  Connection late;
  late.exit_limit = 500ms;
  late.backends.shut();
  test::expect_error(ErrorCode::kTimeout, "timed out", [&] { late.connect("student.dp", 50ms); });
  late.backends.open();
  std::this_thread::sleep_for(600ms);
  EXPECT_FALSE(late.ended->load());
}

}  // namespace
}  // namespace retort::parallel
