// One of a session's two ways for messages: whole messages in, whole messages out, in order.
//
// Ending: close() may be called at any time, and nothing is called back afterwards but functions
//   given to write(). An error ends the pipe likewise and is reported once.
// Threads: the loop thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace retort::rpc::detail {

// A message with everything that must live while it travels.
struct WireMessage {
  std::string payload;
  std::string metadata;  // travels with the descriptor; at most one byte
  std::vector<at::Tensor> tensors;
  // An outgoing message has for each tensor the peer's device, or -1 for its CPU; empty: all are on
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

class MessagePipe {
 public:
  using OnMessage = std::function<void(WireMessage)>;
  using OnError = std::function<void(const Error&)>;
  // Sees what a message announces before memory is taken for it. The result is held for as long as
  // that memory (WireMessage::credit); an Error that it throws ends the pipe.
  using Admit = std::function<std::shared_ptr<void>(const std::string& metadata, uint64_t bytes)>;

  virtual ~MessagePipe() = default;
  // Runs once, unless close() came first. Set before the first read and write.
  virtual void set_on_error(OnError on_error) = 0;
  // Reads one message. One read at a time. Without `admit`, a message has no metadata.
  virtual void read(uint64_t max_bytes, OnMessage on_message, Admit admit = nullptr) = 0;
  // on_written runs when the message's memory is free again, also after an error.
  virtual void write(std::shared_ptr<const WireMessage> message,
                     std::function<void()> on_written) = 0;
  virtual void close() = 0;
};

}  // namespace retort::rpc::detail
