#include "rpc/detail/device_channels.h"

#include <tensorpipe/common/device.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <unordered_map>
#include <utility>

#include "base/log.h"

namespace retort::rpc::detail {
namespace {

std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// A channel whose question about a pair of devices cannot end the process: TensorPipe asks it while
// two processes connect, where nobody catches. Both of them have the same machine to ask, so that
// they agree.
class CautiousContext final : public tensorpipe::channel::Context {
 public:
  CautiousContext(std::string name, std::shared_ptr<tensorpipe::channel::Context> channel)
      : name_(std::move(name)), channel_(std::move(channel)) {}

  bool canCommunicateWithRemote(const std::string& ours, const std::string& theirs) const override {
    try {
      return channel_->canCommunicateWithRemote(ours, theirs);
    } catch (const std::exception& error) {
      if (!told_.exchange(true)) {
        RETORT_LOG(kWarning) << "TensorPipe's channel " << name_
                             << " cannot tell whether it reaches a device of a peer, so the next "
                                "one is used: "
                             << first_line_of(error);
      }
      return false;
    }
  }

  bool isViable() const override { return channel_->isViable(); }
  size_t numConnectionsNeeded() const override { return channel_->numConnectionsNeeded(); }
  const std::unordered_map<tensorpipe::Device, std::string>& deviceDescriptors() const override {
    return channel_->deviceDescriptors();
  }
  std::shared_ptr<tensorpipe::channel::Channel> createChannel(
      std::vector<std::shared_ptr<tensorpipe::transport::Connection>> connections,
      tensorpipe::channel::Endpoint endpoint) override {
    return channel_->createChannel(std::move(connections), endpoint);
  }
  void setId(std::string id) override { channel_->setId(std::move(id)); }
  void close() override { channel_->close(); }
  void join() override { channel_->join(); }

 private:
  const std::string name_;
  const std::shared_ptr<tensorpipe::channel::Context> channel_;
  mutable std::atomic<bool> told_{false};
};

DeviceChannel make(const DeviceTransfer::ChannelMaker& maker) {
  DeviceChannel channel{.name = maker.name, .how = maker.how, .context = nullptr, .problem = ""};
  try {
    auto context = maker.make();
    if (context != nullptr && context->isViable())
      channel.context = std::make_shared<CautiousContext>(maker.name, std::move(context));
    else
      channel.problem = "TensorPipe says that it does not work on this machine";
  } catch (const std::exception& error) {
    channel.problem = first_line_of(error);
  }
  return channel;
}

}  // namespace

std::vector<DeviceChannel> make_device_channels(DeviceTransfer& devices) {
  std::vector<DeviceChannel> channels;
  for (const DeviceTransfer::ChannelMaker& maker : devices.channels())
    channels.push_back(make(maker));
  return channels;
}

}  // namespace retort::rpc::detail
