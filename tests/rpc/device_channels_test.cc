// Channels for memory of devices that do not work, in each of the ways in which they say so.
#include "rpc/detail/device_channels.h"

#include <gtest/gtest.h>
#include <tensorpipe/tensorpipe.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc/device_transfer.h"
#include "tests/rpc/plain_transfer.h"

namespace retort::rpc::detail {
namespace {

// A channel that says of itself what the test wants.
class SomeContext final : public tensorpipe::channel::Context {
 public:
  SomeContext(bool viable, bool throws) : viable_(viable), throws_(throws) {}
  bool isViable() const override { return viable_; }
  size_t numConnectionsNeeded() const override { return 3; }
  const std::unordered_map<tensorpipe::Device, std::string>& deviceDescriptors() const override {
    return devices_;
  }
  bool canCommunicateWithRemote(const std::string& ours, const std::string& theirs) const override {
    if (throws_) throw std::runtime_error("Couldn't find GPU with UUID MIG-1\nbacktrace");
    return ours == theirs;
  }
  std::shared_ptr<tensorpipe::channel::Channel> createChannel(
      std::vector<std::shared_ptr<tensorpipe::transport::Connection>>,
      tensorpipe::channel::Endpoint) override {
    return {};
  }
  void setId(std::string) override {}
  void close() override { ++closed; }
  void join() override { ++joined; }

  static inline int closed = 0, joined = 0;

 private:
  const bool viable_, throws_;
  const std::unordered_map<tensorpipe::Device, std::string> devices_{{{"cuda", 0}, "here"}};
};

class SomeChannels final : public testing::PlainTransfer {
 public:
  std::vector<ChannelMaker> channels() override {
    const auto context = [](bool viable, bool throws) {
      return [=] { return std::make_shared<SomeContext>(viable, throws); };
    };
    return {{"inside", "inside of a process", context(true, false)},
            {"mig", "from device to device",
             []() -> std::shared_ptr<tensorpipe::channel::Context> {
               throw std::runtime_error("Couldn't obtain valid UUID for GPU #0\nbacktrace");
             }},
            {"none", "from device to device",
             [] { return std::shared_ptr<tensorpipe::channel::Context>(); }},
            {"idle", "from device to device", context(false, false)},
            {"doubtful", "from device to device", context(true, true)}};
  }
};

TEST(DeviceChannels, OneThatThrowsIsLeftOutAndSaysWhy) {
  SomeChannels devices;
  const std::vector<DeviceChannel> made = make_device_channels(devices);
  ASSERT_EQ(made.size(), 5u);
  EXPECT_EQ(made[0].name, "inside");
  EXPECT_TRUE(made[0].context != nullptr && made[0].problem.empty());
  EXPECT_EQ(made[1].context, nullptr);
  EXPECT_EQ(made[1].problem, "Couldn't obtain valid UUID for GPU #0");
  for (const size_t index : {size_t{2}, size_t{3}}) {
    EXPECT_EQ(made[index].context, nullptr);
    EXPECT_NE(made[index].problem.find("does not work"), std::string::npos) << made[index].problem;
  }
  EXPECT_NE(made[4].context, nullptr) << "it is asked about pairs of devices only later";
}

TEST(DeviceChannels, OneThatThrowsAboutAPairIsNotTakenForIt) {
  SomeChannels devices;
  const std::vector<DeviceChannel> made = make_device_channels(devices);
  EXPECT_TRUE(made[0].context->canCommunicateWithRemote("a", "a"));
  EXPECT_FALSE(made[0].context->canCommunicateWithRemote("a", "b"));
  EXPECT_EQ(made[0].context->numConnectionsNeeded(), 3u);
  EXPECT_EQ(made[0].context->deviceDescriptors().size(), 1u);

  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(made[4].context->canCommunicateWithRemote("a", "a"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t first = log.find("channel doubtful cannot tell");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_NE(log.find("Couldn't find GPU with UUID MIG-1"), std::string::npos) << log;
  EXPECT_EQ(log.find("channel doubtful", first + 1), std::string::npos) << "once: " << log;
}

TEST(DeviceChannels, AReportEndsWhatItHasMade) {
  SomeChannels devices;
  SomeContext::closed = SomeContext::joined = 0;
  const std::vector<DeviceChannelState> states = device_channels(devices);
  ASSERT_EQ(states.size(), 5u);
  EXPECT_TRUE(states[0].problem.empty());
  EXPECT_EQ(states[0].how, "inside of a process");
  EXPECT_EQ(states[1].name, "mig");
  EXPECT_EQ(states[1].problem, "Couldn't obtain valid UUID for GPU #0");
  EXPECT_EQ(SomeContext::closed, 2);
  EXPECT_EQ(SomeContext::joined, 2);
}

}  // namespace
}  // namespace retort::rpc::detail
