// What carries an agent's data messages: where a session gets its two pipes from.
//
// Use: open() for a proved control connection; then one side calls listen(), the other connect(),
//   twice; end() when the session ends, however it ends.
// Ending: close() first, then, when no session is left, join() while the loop still runs.
// Threads: the loop thread, but for join().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "rpc/network/message_pipe.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/proof.h"

namespace retort::rpc::detail {

class PipeListener {
 public:
  virtual ~PipeListener() = default;
  virtual void close() = 0;
};

class DataPlane {
 public:
  // A pipe that the other side connected, or why there is none.
  using OnPipe = std::function<void(const std::optional<Error>&, std::shared_ptr<MessagePipe>)>;

  virtual ~DataPlane() = default;
  // `dialed`: where the other side's port is; nothing if it is the one that dials.
  virtual void open(const transport::Proven& control, const std::optional<PeerAddress>& dialed) = 0;
  virtual void end(const std::string& session) = 0;
  // Calls `on_pipe` so many times, also when it is closed before: then with an error.
  virtual std::shared_ptr<PipeListener> listen(const std::string& session, size_t num_pipes,
                                               OnPipe on_pipe) = 0;
  virtual std::shared_ptr<MessagePipe> connect(const std::string& session,
                                               const std::string& peer) = 0;

  // Nothing is dialed any more.
  virtual void close() = 0;
  // Returns when nothing of it can run any more. Not on the loop thread.
  virtual void join() = 0;
};

}  // namespace retort::rpc::detail
