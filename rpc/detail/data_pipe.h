// A TensorPipe pipe as a MessagePipe: every limit is checked on the descriptor before a byte is
// allocated. Used on the loop thread only; TensorPipe's callbacks post to it, but for steps that
// touch nothing of the loop's and say so.
#pragma once

#include <tensorpipe/core/message.h>
#include <tensorpipe/core/pipe.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "rpc/archive.h"
#include "rpc/detail/device_transfer.h"
#include "rpc/detail/receive_pool.h"
#include "rpc/loop/loop.h"
#include "rpc/network/message_pipe.h"
#include "rpc/options.h"

namespace retort::rpc::detail {

inline constexpr size_t kMaxTensors = 4096;
// always accepted, so that errors get through
inline constexpr uint64_t kMinMessageBytes = 64 << 10;
inline constexpr uint64_t kPipeHelloBytes = 4 << 10;  // the first message of a pipe

// Checks a message and says for each tensor on a device where it goes. kResourceExhausted above
// `max_bytes` or 4,096 tensors; kInvalidArgument, naming map and key, for a tensor that is not on
// the CPU and has no entry there; kUnavailable if `devices` is null or moves no such tensors, or if
// the peer sees no devices.
void address(WireMessage& message, const std::string& peer, uint64_t max_bytes,
             const RpcOptions& options, const DeviceTransfer* devices = nullptr,
             bool peer_sees_devices = true);
// Runs on the thread that gives the tensors away: orders the sending behind its work on the
// devices.
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

class DataPipe final : public MessagePipe, public std::enable_shared_from_this<DataPipe> {
 public:
  DataPipe(Loop& loop, std::shared_ptr<ReceivePool> pool, std::shared_ptr<DeviceTransfer> devices,
           std::shared_ptr<tensorpipe::Pipe> pipe);

  void set_on_error(OnError on_error) override { on_error_ = std::move(on_error); }
  void read(uint64_t max_bytes, OnMessage on_message, Admit admit) override;
  void write(std::shared_ptr<const WireMessage> message, std::function<void()> on_written) override;
  void close() override;

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
