// What an agent needs of the world outside: a thread, a port at which peers find it, connections to
// theirs. In a run that is TCP (tcp_network.h); a simulation brings its own (Agent::Options).
//
// Use: open_port() before the loop is started; close_port(), then data().close() and data().join(),
//   then loop()->stop().
// Threads: the loop thread, but for the constructor, loop(), address(), data().join().
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rpc/loop/loop.h"
#include "rpc/network/data_plane.h"
#include "rpc/transport/dial.h"

namespace retort::rpc::detail {

class Network {
 public:
  // A control connection that came in and was proved.
  using OnControl =
      std::function<void(std::shared_ptr<transport::Stream>, const transport::Proven&)>;

  virtual ~Network() = default;
  virtual std::shared_ptr<Loop> loop() = 0;
  virtual DataPlane& data() = 0;

  // kUnavailable if nothing can be listened at.
  virtual void open_port(OnControl on_control) = 0;
  // What others are told, "host:port". Any thread, once the port is open.
  virtual std::string address() const = 0;
  virtual void close_port() = 0;
  // A new attempt to reach a port, not yet started.
  virtual std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) = 0;
};

}  // namespace retort::rpc::detail
