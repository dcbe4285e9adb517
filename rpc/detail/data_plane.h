// What carries an agent's data messages: TensorPipe over the project's own transport
// (rpc/transport), and the table of sessions that its connections belong to.
//
// Use: open() for a proved control connection; then one side calls listen(), the other connect(),
//   twice each; end() when the session ends, however it ends.
// Ending: close() first, then, when no session is left, join() while the loop still runs.
// Threads: the loop thread, but for the constructor and join().
#pragma once

#include <tensorpipe/core/context.h>

#include <memory>
#include <optional>
#include <string>

#include "rpc/detail/device_transfer.h"
#include "rpc/detail/loop.h"
#include "rpc/detail/peer_address.h"
#include "rpc/options.h"
#include "rpc/transport/detail/context.h"
#include "rpc/transport/sessions.h"

namespace retort::rpc::detail {

class DataPlane {
 public:
  // `devices` may be null.
  DataPlane(std::shared_ptr<Loop> loop, const transport::Identity& identity,
            const transport::StreamFactory& streams, const RpcOptions& options,
            DeviceTransfer* devices);

  // `dialed`: where the other side's port is; nothing if it is the one that dials.
  void open(const transport::Proven& control, const std::optional<PeerAddress>& dialed);
  void end(const std::string& session);
  std::shared_ptr<tensorpipe::Listener> listen(const std::string& session);
  std::shared_ptr<tensorpipe::Pipe> connect(const std::string& session, const std::string& peer);

  // For the acceptor.
  std::optional<transport::SessionKey> find(const std::string& session) const;
  void deliver(const std::string& session, std::shared_ptr<transport::Stream> stream);

  // Nothing is dialed any more.
  void close();
  // Returns when no callback of TensorPipe can run any more. Not on the loop thread.
  void join();

 private:
  void add_channels(int64_t priority, const RpcOptions& options, DeviceTransfer* devices);

  const std::shared_ptr<transport::Sessions> sessions_;
  const std::shared_ptr<transport::Context> connections_;
  std::unique_ptr<tensorpipe::Context> tensorpipe_;
};

}  // namespace retort::rpc::detail
