// A data connection's end in memory, for whole messages.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "rpc/detail/receive_pool.h"
#include "rpc/network/message_pipe.h"
#include "tests/rpc/simulation/network.h"

namespace retort::rpc::simulation {

class MemoryPipe final : public rpc::detail::MessagePipe,
                         public End,
                         public std::enable_shared_from_this<MemoryPipe> {
 public:
  explicit MemoryPipe(std::shared_ptr<Host> host);
  static void join(const std::shared_ptr<MemoryPipe>& one,
                   const std::shared_ptr<MemoryPipe>& other);

  void set_on_error(OnError on_error) override { on_error_ = std::move(on_error); }
  void read(uint64_t max_bytes, OnMessage on_message, Admit admit) override;
  // The message's memory is free when the other end has taken it.
  void write(std::shared_ptr<const rpc::detail::WireMessage> message,
             std::function<void()> on_written) override;
  void close() override;

  void reset() override;

 private:
  struct Sent {
    std::shared_ptr<const rpc::detail::WireMessage> message;
    std::function<void()> on_written;
  };
  struct Read {
    uint64_t max_bytes = 0;
    OnMessage on_message;
    Admit admit;
  };
  void send_next();
  void arrive();
  void take();
  void receive(const rpc::detail::WireMessage& sent, const Read& read);
  void taken();
  void fail(const Error& error);

  std::weak_ptr<MemoryPipe> peer_;
  const std::shared_ptr<rpc::detail::ReceivePool> pool_;
  OnError on_error_;
  std::deque<Sent> unsent_, unread_;  // of this end: not there yet; there, but not taken
  bool sending_ = false, taking_ = false, peer_gone_ = false;
  std::optional<Read> read_;
};

}  // namespace retort::rpc::simulation
