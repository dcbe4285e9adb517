// How a session's messages move once it is up: over which of its two pipes, and when the other side
// has room for them.
//
//   write() -> pipe 0                small messages, which nothing holds up
//           -> SendWindow -> pipe 1  large ones, when the peer has granted room for their kind
//   pipe 1  -> ReceiveAccount        what the peer may send; its memory is taken afterwards
//
// Use: open_accounts() when the peer is known, open() with the pipes, close() at the end.
// Threads: the loop thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rpc/detail/frames.h"
#include "rpc/detail/pipe_setup.h"
#include "rpc/detail/session_context.h"
#include "rpc/flow/receive_budget.h"
#include "rpc/flow/send_window.h"
#include "rpc/network/message_pipe.h"

namespace retort::rpc::detail {

class MessageFlow {
 public:
  explicit MessageFlow(SessionContext& context);

  void open_accounts();
  void open(Pipes pipes) { pipes_ = std::move(pipes); }
  // Nothing is sent or received any more.
  void close();

  // Reads one message of a pipe, as far as the room allows that was granted.
  void read(uint32_t index, MessagePipe::OnMessage on_message);
  void write(BulkKind kind, uint64_t call_id, std::shared_ptr<WireMessage> message);
  // Takes a message back that waits for room. False: it has left, or was never there.
  bool withdraw(BulkKind kind, uint64_t call_id);
  bool waits(BulkKind kind, uint64_t call_id) const { return window(kind).waits(call_id); }
  // Messages that wait for room or are being written.
  size_t num_writes() const { return num_writes_; }

  // Grant, Want, AskBack, Lowered.
  void on_room(FrameType type, const Room& room);
  // The peer was asked for room back and has not answered, which takes no more than the control
  // connection.
  bool owes_room() const;

 private:
  std::shared_ptr<void> take_room(BulkKind kind, uint64_t bytes);
  void write_to(uint32_t index, std::shared_ptr<const WireMessage> message);
  SendWindow& window(BulkKind kind) { return *windows_[static_cast<size_t>(kind)]; }
  const SendWindow& window(BulkKind kind) const { return *windows_[static_cast<size_t>(kind)]; }
  ReceiveAccount& account(BulkKind kind) { return *accounts_[static_cast<size_t>(kind)]; }

  SessionContext& context_;
  Pipes pipes_;
  // Large messages, by kind: what we may send, what the peer may send.
  std::array<std::unique_ptr<SendWindow>, kNumBulkKinds> windows_;
  std::array<std::shared_ptr<ReceiveAccount>, kNumBulkKinds> accounts_;
  size_t num_writes_ = 0;
};

}  // namespace retort::rpc::detail
