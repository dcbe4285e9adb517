// How a session comes to its two pipes: the client connects them, the server listens, and the first
// message of each says, both ways, which one it is.
//
// Use: listen() before the client can know of this session, or connect() once the server listens;
//   then `ready` is called once, with both. close() when the session ends, however it ends.
// Errors: a pipe that breaks or lies is refused (SessionContext::refuse).
// Threads: the loop thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rpc/detail/session_context.h"
#include "rpc/network/data_plane.h"
#include "rpc/network/message_pipe.h"

namespace retort::rpc::detail {

// Pipe 0 carries small messages, pipe 1 large ones.
using Pipes = std::array<std::shared_ptr<MessagePipe>, 2>;

class PipeSetup {
 public:
  PipeSetup(SessionContext& context, std::function<void(Pipes)> ready)
      : context_(context), ready_(std::move(ready)) {}

  void listen();   // server
  void connect();  // client
  void close();

 private:
  void on_accepted(const std::shared_ptr<MessagePipe>& pipe);
  void add_candidate(const std::shared_ptr<MessagePipe>& pipe);
  void add_pipe(uint32_t index, std::shared_ptr<MessagePipe> pipe);
  bool over() const { return context_.phase() != SessionContext::Phase::kPipes; }

  SessionContext& context_;
  const std::function<void(Pipes)> ready_;
  std::shared_ptr<PipeListener> listener_;
  std::vector<std::shared_ptr<MessagePipe>> candidates_;  // have not said which pipe they are
  Pipes pipes_;
};

}  // namespace retort::rpc::detail
