#include "rpc/detail/data_pipe.h"

#include <tensorpipe/tensorpipe.h>

#include <utility>

#include "base/process_name.h"
#include "base/units.h"
#include "rpc/detail/tensor_format.h"
#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

constexpr size_t kMaxTensorMetadataBytes = 2 + kMaxDims * sizeof(int64_t);

Error lost(const tensorpipe::Error& error) {
  return Error(ErrorCode::kPeerLost, "the data connection broke: " + error.what());
}

// Looks up where rpc.device_maps sends a tensor that lies on a device.
int64_t target_of(const at::Tensor& tensor, const std::string& peer, const RpcOptions& options,
                  const DeviceTransfer* devices) {
  const std::string role = role_of(peer);
  const auto index = std::to_string(tensor.device().has_index() ? tensor.device().index() : 0);
  const std::string key = "rpc.device_maps." + role + "." + index;
  const auto map = options.device_maps.find(role);
  if (map == options.device_maps.end() || map->second.count(index) == 0)
    throw Error(ErrorCode::kInvalidArgument, "no entry " + key +
                                                 " for a tensor on this device: add the key " +
                                                 index + " to the map of '" + role +
                                                 "', with the peer's device as its value; or send "
                                                 "a copy in host memory")
        .with("device", tensor.device().str())
        .with("peer", peer);

  if (devices == nullptr || tensor.device().type() != devices->device_type())
    throw Error(ErrorCode::kUnavailable,
                key +
                    " needs the module that moves tensors of such devices (retort_cuda), which "
                    "is not loaded; send a copy in host memory")
        .with("device", tensor.device().str())
        .with("peer", peer);
  return map->second.at(index);
}

// Returns the device of this process that a tensor is to be received on, or -1 for the CPU. What
// the peer announces is checked, not trusted.
int64_t device_of(const tensorpipe::Descriptor::Tensor& tensor, const DeviceTransfer* devices) {
  const bool from_cpu = tensor.sourceDevice.type == tensorpipe::kCpuDeviceType;
  if (from_cpu && (!tensor.targetDevice || tensor.targetDevice->type == tensorpipe::kCpuDeviceType))
    return -1;
  const auto ours = [&](const tensorpipe::Device& device) {
    return device.type == devices->wire_type();
  };
  const bool possible = devices != nullptr && ours(tensor.sourceDevice) && tensor.targetDevice &&
                        ours(*tensor.targetDevice) && tensor.targetDevice->index >= 0 &&
                        tensor.targetDevice->index < devices->num_devices();
  if (possible) return tensor.targetDevice->index;
  throw Error(ErrorCode::kCorrupt,
              "a tensor announces devices that this process does not have; the peer's "
              "rpc.device_maps names them")
      .with("target", tensor.targetDevice ? tensor.targetDevice->toString() : "none")
      .with("devices", devices != nullptr ? devices->num_devices() : 0);
}

Error no_devices_there(const std::string& peer) {
  return Error(ErrorCode::kUnavailable,
               "rpc.device_maps." + role_of(peer) +
                   " has a tensor go to a device of a peer that sees none: its role computes on "
                   "the CPU, or its module for devices is not loaded; send a copy in host memory")
      .with("peer", peer);
}

}  // namespace

void address(WireMessage& message, const std::string& peer, uint64_t max_bytes,
             const RpcOptions& options, const DeviceTransfer* devices, bool peer_sees_devices) {
  if (message.tensors.size() > kMaxTensors)
    throw Error(ErrorCode::kResourceExhausted,
                "a message carries too many tensors; concatenate some")
        .with("tensors", message.tensors.size())
        .with("max", kMaxTensors);
  if (message.on_device())
    for (const auto& tensor : message.tensors) {
      const int64_t target = tensor.is_cpu() ? -1 : target_of(tensor, peer, options, devices);
      if (target >= 0 && tensor.numel() > 0 && !peer_sees_devices) throw no_devices_there(peer);
      // Channels of devices need an address, which a tensor without elements has not.
      message.target_devices.push_back(tensor.numel() == 0 ? -1 : target);
    }
  // A receiver ends the connection over a message that is too large; refused here, it costs this
  // message alone.
  if (const uint64_t bytes = message.size_bytes(); bytes > max_bytes)
    throw Error(ErrorCode::kResourceExhausted,
                "a message is larger than rpc.max_message_bytes of one of the two sides")
        .with("bytes", bytes)
        .with("max", max_bytes);
}

void begin_send(const std::vector<at::Tensor>& tensors, DeviceTransfer* devices) {
  if (devices == nullptr) return;
  for (const auto& tensor : tensors)
    if (tensor.device().type() == devices->device_type()) devices->begin_send(tensor);
}

// The peer's numbers are not trusted: they are checked before any memory is allocated.
uint64_t announced_bytes(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes) {
  uint64_t bytes = 0;
  const auto add = [&](uint64_t length) {
    if (length > max_bytes || bytes > max_bytes - length)
      throw Error(ErrorCode::kResourceExhausted, "a message is larger than rpc.max_message_bytes")
          .with("max", max_bytes);
    bytes += length;
  };
  for (const auto& payload : descriptor.payloads)
    add(payload.length);
  for (const auto& tensor : descriptor.tensors)
    add(tensor.length);
  return bytes;
}

std::shared_ptr<WireMessage> allocate(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes,
                                      ReceivePool& pool, tensorpipe::Allocation& allocation,
                                      DeviceTransfer* devices) {
  if (descriptor.payloads.size() != 1 || descriptor.metadata.size() > 1 ||
      !descriptor.payloads[0].metadata.empty())
    throw Error(ErrorCode::kCorrupt, "a data message has another form than ours");
  if (descriptor.tensors.size() > kMaxTensors)
    throw Error(ErrorCode::kResourceExhausted, "a message carries too many tensors")
        .with("tensors", descriptor.tensors.size());

  const uint64_t bytes = announced_bytes(descriptor, max_bytes);

  // TensorPipe will write as many bytes as a tensor announces, so a shape that takes fewer would be
  // overrun. The two are compared before any memory is taken.
  std::vector<TensorFormat> formats;
  std::vector<int64_t> targets;
  for (const auto& tensor : descriptor.tensors) {
    std::string_view metadata = tensor.metadata;
    if (metadata.size() > kMaxTensorMetadataBytes)
      throw Error(ErrorCode::kCorrupt, "a tensor announces impossible metadata");
    targets.push_back(device_of(tensor, devices));
    formats.push_back(TensorFormat::take(metadata));
    if (!metadata.empty() || formats.back().size_bytes() != tensor.length)
      throw Error(ErrorCode::kCorrupt, "a tensor's shape and length disagree")
          .with("bytes", tensor.length);
  }

  // The payload and each tensor get memory on the device that they are meant for.
  auto message = std::make_shared<WireMessage>();
  message->metadata = descriptor.metadata;
  try {
    message->payload.resize(descriptor.payloads[0].length);
    for (size_t i = 0; i < formats.size(); ++i)
      message->tensors.push_back(
          targets[i] < 0 ? pool.allocate(formats[i])
                         : devices->allocate(formats[i].sizes, formats[i].dtype, targets[i]));
  } catch (const std::exception&) {
    throw Error(ErrorCode::kResourceExhausted, "no memory for a message that arrives")
        .with("bytes", bytes);
  }

  // TensorPipe writes straight into that memory.
  allocation.payloads.resize(1);
  allocation.payloads[0].data = message->payload.data();
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& tensor = message->tensors[i];
    allocation.tensors.push_back(
        {targets[i] < 0 ? tensorpipe::Buffer(tensorpipe::CpuBuffer{tensor.mutable_data_ptr()})
                        : devices->receive_buffer(tensor)});
  }
  return message;
}

tensorpipe::Message to_tensorpipe(const WireMessage& message, DeviceTransfer* devices) {
  tensorpipe::Message out;
  out.metadata = message.metadata;
  out.payloads.resize(1);
  out.payloads[0].data = const_cast<char*>(message.payload.data());
  out.payloads[0].length = message.payload.size();
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    const at::Tensor& tensor = message.tensors[i];
    tensorpipe::Message::Tensor entry;
    // Only a tensor with a target goes through a channel of devices; all others are read from host
    // memory.
    if (const int64_t target = message.target_devices.empty() ? -1 : message.target_devices[i];
        target >= 0) {
      entry.buffer = devices->send_buffer(tensor);
      entry.targetDevice = tensorpipe::Device(devices->wire_type(), static_cast<int>(target));
    } else {
      entry.buffer = tensorpipe::CpuBuffer{const_cast<void*>(tensor.const_data_ptr())};
    }
    entry.length = tensor.nbytes();
    entry.metadata = format_of(tensor).to_bytes();
    out.tensors.push_back(std::move(entry));
  }
  return out;
}

DataPipe::DataPipe(Loop& loop, std::shared_ptr<ReceivePool> pool,
                   std::shared_ptr<DeviceTransfer> devices, std::shared_ptr<tensorpipe::Pipe> pipe)
    : loop_(loop), pool_(std::move(pool)), devices_(std::move(devices)), pipe_(std::move(pipe)) {}

void DataPipe::read(uint64_t max_bytes, OnMessage on_message, Admit admit) {
  if (closed_) return;
  pipe_->readDescriptor([self = shared_from_this(), max_bytes, on_message = std::move(on_message),
                         admit = std::move(admit)](const tensorpipe::Error& error,
                                                   tensorpipe::Descriptor descriptor) noexcept {
    // A message without tensors, on a pipe without `admit`, needs nothing but a string. It is
    // received on TensorPipe's thread, which saves a hand-over; the loop sees whether the pipe was
    // closed when the message has arrived.
    if (!error && descriptor.tensors.empty() && !admit)
      return self->receive(descriptor, max_bytes, on_message, admit);
    self->loop_.post(
        [self, error, max_bytes, descriptor = std::move(descriptor), on_message, admit] {
          if (error) return self->fail(lost(error));
          if (!self->closed_) self->receive(descriptor, max_bytes, on_message, admit);
        });
  });
}

// Runs on the loop thread, or without `admit` on TensorPipe's. So it touches nothing but constants
// and the pipe, which takes calls from any thread.
void DataPipe::receive(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes,
                       const OnMessage& on_message, const Admit& admit) {
  tensorpipe::Allocation allocation;
  std::shared_ptr<WireMessage> message;
  try {
    const uint64_t bytes = announced_bytes(descriptor, max_bytes);
    std::shared_ptr<void> room;
    if (admit)
      room = admit(descriptor.metadata, bytes);
    else if (!descriptor.metadata.empty())
      throw Error(ErrorCode::kCorrupt, "a small message has another form than ours");
    message = allocate(descriptor, max_bytes, *pool_, allocation, devices_.get());
    message->credit = std::move(room);
  } catch (...) {
    // fail() changes what belongs to the loop's thread, which this may not be.
    loop_.post(
        [self = shared_from_this(), error = transport::caught_error()] { self->fail(error); });
    return;
  }
  pipe_->read(std::move(allocation),
              [self = shared_from_this(), message,
               on_message = std::move(on_message)](const tensorpipe::Error& error) noexcept {
                if (!error && message->on_device()) return self->deliver(message, on_message);
                self->loop_.post([self, error, message, on_message] {
                  if (error) return self->fail(lost(error));
                  if (!self->closed_) on_message(std::move(*message));
                });
              });
}

// The copies onto the device are queued; the message is handed out when they have happened.
void DataPipe::deliver(const std::shared_ptr<WireMessage>& message, const OnMessage& on_message) {
  const auto arrived = [self = shared_from_this(), message, on_message] {
    self->loop_.post([self, message, on_message] {
      if (!self->closed_) on_message(std::move(*message));
    });
  };
  try {
    devices_->when_arrived(message->tensors, arrived);
  } catch (const std::exception& e) {
    loop_.post([self = shared_from_this(), why = std::string(e.what())] {
      self->fail(Error(ErrorCode::kPeerLost, "the device failed while a message arrived: " + why));
    });
  }
}

void DataPipe::write(std::shared_ptr<const WireMessage> message, std::function<void()> on_written) {
  if (closed_) return on_written();
  auto wire = to_tensorpipe(*message, devices_.get());
  pipe_->write(std::move(wire),
               [self = shared_from_this(), message,
                on_written = std::move(on_written)](const tensorpipe::Error& error) noexcept {
                 self->loop_.post([self, error, message, on_written] {
                   if (error) self->fail(lost(error));
                   on_written();
                 });
               });
}

void DataPipe::close() {
  if (closed_) return;
  closed_ = true;
  pipe_->close();
  // on_error_ may be running now, so it is destroyed later, from the queue.
  boost::asio::post(loop_.io(), [on_error = std::move(on_error_)] {});
  on_error_ = nullptr;
}

void DataPipe::fail(const Error& error) {
  if (closed_) return;
  const OnError report = on_error_;
  close();
  if (report) report(error);
}

}  // namespace retort::rpc::detail
