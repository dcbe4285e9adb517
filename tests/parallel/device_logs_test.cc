// What a world says of its device: the memory that is left, and contexts that should not be there.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/world.h"
#include "tests/parallel/plain_backends.h"

namespace retort::parallel {
namespace {

// Two cards, of which the process takes the second.
class TwoCards final : public testing::PlainBackends {
 public:
  explicit TwoCards(std::vector<int64_t> contexts) : contexts_(std::move(contexts)) {}
  int64_t num_devices() const override { return 2; }
  detail::DeviceMemory memory() const override {
    return {.free = int64_t{12} << 30, .total = int64_t{64} << 30};
  }
  std::vector<int64_t> contexts() const override { return contexts_; }

 private:
  const std::vector<int64_t> contexts_;
};

// The log of a world of one rank on the second card.
std::string log_of_world(std::vector<int64_t> contexts) {
  World::Options options{.role = "teacher"};
  options.layout.device = Device::kCuda;
  options.device_module =
      std::make_shared<DeviceModule>(std::make_unique<TwoCards>(std::move(contexts)));
  options.device_users = {{.role = "teacher", .ranks = 1, .devices = {1}}};
  ::testing::internal::CaptureStderr();
  { const World world(options); }
  return ::testing::internal::GetCapturedStderr();
}

bool log_says(const std::string& log, const std::string& text) {
  return log.find(text) != std::string::npos;
}

TEST(DeviceLogs, TellWhatIsLeftOfTheDevicesMemory) {
  const std::string log = log_of_world({1});
  EXPECT_TRUE(log_says(log, "groups connected on the device: none; 12.0 of its 64.0 GiB are free"))
      << log;
  EXPECT_FALSE(log_says(log, "context")) << log;
}

TEST(DeviceLogs, TellOfAContextOnAnotherDevice) {
  const std::string log = log_of_world({0, 1});
  EXPECT_TRUE(log_says(log, "computes on device 1 and has a context on device 0 too")) << log;
}

}  // namespace
}  // namespace retort::parallel
