// One TensorPipe pipe, seen from the loop thread: whole messages in, whole messages out, every
// limit checked on the descriptor before a byte is allocated. Used on the loop thread only;
// TensorPipe's callbacks post to it, but for steps that touch nothing of the loop's and say so.
#pragma once

#include <tensorpipe/core/message.h>
#include <tensorpipe/core/pipe.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "rpc/archive.h"
#include "rpc/detail/device_transfer.h"
#include "rpc/detail/loop.h"
#include "rpc/detail/receive_pool.h"
#include "rpc/options.h"

namespace retort::rpc::detail {

inline constexpr size_t kMaxTensors = 4096;
// always accepted, so that errors get through
inline constexpr uint64_t kMinMessageBytes = 64 << 10;
inline constexpr uint64_t kPipeHelloBytes = 4 << 10;  // the first message of a pipe

// A message with everything that must live while it travels.
struct WireMessage {
  std::string payload;
  std::string metadata;  // travels with the descriptor; at most one byte
  std::vector<at::Tensor> tensors;
  // Of an outgoing message: for each tensor the peer's device, or -1 for its CPU; empty: all are on
  // the CPU.
  std::vector<int64_t> target_devices;
  // Sent: held until the message has left and nothing reads its memory any more. Received: held for
  // as long as it takes memory here. May be null.
  std::shared_ptr<void> credit;
  // Sent: since when it waits for room at the receiver, and how long it has; empty: it need not.
  std::optional<std::chrono::steady_clock::time_point> in_line_since;
  std::chrono::nanoseconds in_line{0};
  uint64_t size_bytes() const;
  bool on_device() const;  // any of the tensors
};

// Checks a message and says for each tensor on a device where it goes. kResourceExhausted above
// `max_bytes` or 4,096 tensors; kInvalidArgument, naming map and key, for a tensor that is not on
// the CPU and has no entry there; kUnavailable if `devices` is null or moves no such tensors.
void address(WireMessage& message, const std::string& peer, uint64_t max_bytes,
             const RpcOptions& options, const DeviceTransfer* devices = nullptr);
// On the thread that gives the tensors away: orders the sending behind its work on the devices.
void begin_send(const std::vector<at::Tensor>& tensors, DeviceTransfer* devices);

// What a message will take, as its descriptor announces it. kResourceExhausted above `max_bytes`.
uint64_t announced_bytes(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes);
// Space for a message as its descriptor announces it, on the devices that the peer names if there
// are `devices`. kResourceExhausted if it is too large, kCorrupt if it cannot be.
std::shared_ptr<WireMessage> allocate(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes,
                                      ReceivePool& pool, tensorpipe::Allocation& allocation,
                                      DeviceTransfer* devices = nullptr);
// `message` must live until the write is done.
tensorpipe::Message to_tensorpipe(const WireMessage& message, DeviceTransfer* devices);

class DataPipe : public std::enable_shared_from_this<DataPipe> {
 public:
  using OnMessage = std::function<void(WireMessage)>;
  using OnError = std::function<void(const Error&)>;
  // Sees what a message announces before memory is taken for it. The result is held for as long as
  // that memory (WireMessage::credit); an Error that it throws ends the pipe.
  using Admit = std::function<std::shared_ptr<void>(const std::string& metadata, uint64_t bytes)>;

  // on_error (may be null) runs once, unless close() came first.
  DataPipe(Loop& loop, std::shared_ptr<ReceivePool> pool, std::shared_ptr<DeviceTransfer> devices,
           std::shared_ptr<tensorpipe::Pipe> pipe, OnError on_error);
  void set_on_error(OnError on_error) { on_error_ = std::move(on_error); }

  // Reads one message. One read at a time. Without `admit`, a message has no metadata.
  void read(uint64_t max_bytes, OnMessage on_message, Admit admit = nullptr);
  // on_written runs when the message's memory is free again, also after an error.
  void write(std::shared_ptr<const WireMessage> message, std::function<void()> on_written);
  void close();

 private:
  void receive(const tensorpipe::Descriptor& descriptor, uint64_t max_bytes,
               const OnMessage& on_message, const Admit& admit);
  void deliver(const std::shared_ptr<WireMessage>& message, const OnMessage& on_message);
  void fail(const Error& error);

  Loop& loop_;
  const std::shared_ptr<ReceivePool> pool_;
  const std::shared_ptr<DeviceTransfer> devices_;  // may be null
  const std::shared_ptr<tensorpipe::Pipe> pipe_;
  OnError on_error_;
  bool closed_ = false;
};

}  // namespace retort::rpc::detail
