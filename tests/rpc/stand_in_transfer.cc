#include "tests/rpc/stand_in_transfer.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <tensorpipe/tensorpipe.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc/detail/device_transfer.h"
#include "tests/losses/stand_in_device.h"

// What a channel is, which the torch wheel does not ship: TensorPipe at commit 2b4cd91
// (tensorpipe/channel/channel.h). As rpc/transport/detail/tensorpipe_abi.h, for one version.
static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11 && TORCH_VERSION_PATCH == 0,
              "compare this class with the TensorPipe of the new wheel, then change the version");
namespace tensorpipe::channel {

class Channel {
 public:
  using Done = std::function<void(const Error& error)>;

  virtual void send(Buffer buffer, size_t length, Done done) = 0;
  virtual void recv(Buffer buffer, size_t length, Done done) = 0;
  virtual void setId(std::string id) = 0;
  virtual void close() = 0;
  virtual ~Channel() = default;
};

}  // namespace tensorpipe::channel

namespace retort::rpc::testing {
namespace {

namespace tp = tensorpipe;

constexpr const char* kWireType = "stand_in";
std::atomic<int64_t> announced{0}, sent{0}, received{0};

// Memory of the device. TensorPipe copies it as bytes.
struct StandInBuffer {
  void* there = nullptr;
  tp::Device getDevice() const { return {kWireType, 0}; }
};

// Sends and receives copies in host memory over a channel for host memory.
class StagingChannel final : public tp::channel::Channel {
 public:
  explicit StagingChannel(std::shared_ptr<tp::channel::Channel> host) : host_(std::move(host)) {}

  void send(tp::Buffer buffer, size_t length, Done done) override {
    const auto copy = std::make_shared<std::vector<char>>(length);
    test::read_stand_in(copy->data(), buffer.unwrap<StandInBuffer>().there, length);
    ++sent;
    host_->send(tp::CpuBuffer{copy->data()}, length,
                [copy, done = std::move(done)](const tp::Error& error) { done(error); });
  }
  void recv(tp::Buffer buffer, size_t length, Done done) override {
    const auto copy = std::make_shared<std::vector<char>>(length);
    void* there = buffer.unwrap<StandInBuffer>().there;
    host_->recv(tp::CpuBuffer{copy->data()}, length,
                [copy, there, done = std::move(done)](const tp::Error& error) {
                  if (!error) test::write_stand_in(there, copy->data(), copy->size());
                  ++received;
                  done(error);
                });
  }
  void setId(std::string id) override { host_->setId(std::move(id)); }
  void close() override { host_->close(); }

 private:
  const std::shared_ptr<tp::channel::Channel> host_;
};

class StagingContext final : public tp::channel::Context {
 public:
  bool isViable() const override { return true; }
  size_t numConnectionsNeeded() const override { return host_->numConnectionsNeeded(); }
  const std::unordered_map<tp::Device, std::string>& deviceDescriptors() const override {
    return devices_;
  }
  bool canCommunicateWithRemote(const std::string& ours, const std::string& theirs) const override {
    return ours == theirs;
  }
  std::shared_ptr<tp::channel::Channel> createChannel(
      std::vector<std::shared_ptr<tp::transport::Connection>> connections,
      tp::channel::Endpoint endpoint) override {
    return std::make_shared<StagingChannel>(host_->createChannel(std::move(connections), endpoint));
  }
  void setId(std::string id) override { host_->setId(std::move(id)); }
  void close() override { host_->close(); }
  void join() override { host_->join(); }

 private:
  const std::shared_ptr<tp::channel::Context> host_ = tp::channel::basic::create();
  const std::unordered_map<tp::Device, std::string> devices_{{{kWireType, 0}, "staged"}};
};

class StandInTransfer final : public detail::DeviceTransfer {
 public:
  explicit StandInTransfer(std::vector<std::string> ids) : ids_(std::move(ids)) {}
  at::DeviceType device_type() const override { return test::stand_in_device().type(); }
  std::string wire_type() const override { return kWireType; }
  int64_t num_devices() const override { return static_cast<int64_t>(ids_.size()); }
  const std::vector<std::string>& device_ids() override { return ids_; }
  std::vector<ChannelMaker> channels() override {
    return {{"staged", "by copies of the host", [] { return std::make_shared<StagingContext>(); }}};
  }

  void begin_send(const at::Tensor&) override { ++announced; }
  tp::Buffer send_buffer(const at::Tensor& tensor) override {
    return StandInBuffer{const_cast<void*>(tensor.const_data_ptr())};
  }
  at::Tensor allocate(const std::vector<int64_t>& sizes, at::ScalarType dtype, int64_t) override {
    c10::InferenceMode ordinary(false);
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(test::stand_in_device()));
  }
  tp::Buffer receive_buffer(const at::Tensor& tensor) override {
    return StandInBuffer{tensor.mutable_data_ptr()};
  }
  // There are no streams: the bytes are there when the channel says so.
  void when_arrived(const std::vector<at::Tensor>&, std::function<void()> arrived) override {
    arrived();
  }

 private:
  const std::vector<std::string> ids_;
};

}  // namespace

std::unique_ptr<detail::DeviceTransfer> stand_in_transfer(std::vector<std::string> ids) {
  return std::make_unique<StandInTransfer>(std::move(ids));
}

StandInTraffic stand_in_traffic() {
  return {.announced = announced, .sent = sent, .received = received};
}

}  // namespace retort::rpc::testing
