// What a session needs of the agent that it belongs to. Called on the loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/future.h"
#include "rpc/agent.h"
#include "rpc/detail/peer_state.h"
#include "rpc/flow/receive_budget.h"
#include "rpc/loop/loop.h"
#include "rpc/network/data_plane.h"
#include "rpc/transport/dial.h"

namespace retort::rpc::detail {

class Session;

// Answers through the function it is given, now or later, or throws.
using HandlerFunction =
    std::function<void(Message, const CallContext&, std::function<void(Outcome<Message>)>)>;

struct Handler {
  uint64_t schema = 0;  // method_schema() where it is served
  std::shared_ptr<HandlerQueue> queue;
  std::shared_ptr<const HandlerFunction> run;
};

class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual const Agent::Options& options() const = 0;
  virtual const std::string& incarnation() const = 0;
  virtual std::shared_ptr<Loop> loop() = 0;
  virtual DataPlane& data() = 0;
  // A new attempt to reach a port, not yet started.
  virtual std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) = 0;
  virtual ReceiveBudget& receive_budget() = 0;
  virtual bool closing() const = 0;
  // kMismatch for a process whose successor was met already.
  virtual void admit(const std::string& peer, uint64_t restart) = 0;
  // Null if no such method is served.
  virtual std::shared_ptr<const Handler> handler(const std::string& method) const = 0;
  virtual std::shared_ptr<PeerState> peer_state(const std::string& peer) = 0;
  // A new session that the host keeps until session_down().
  virtual void session_begins(const std::shared_ptr<Session>& session) = 0;
  virtual void session_up(const std::shared_ptr<Session>& session) = 0;
  // Once for every session, up or not.
  virtual void session_down(const std::shared_ptr<Session>& session, const Error& reason) = 0;
  // A call or a write came to its end: a drain may be complete.
  virtual void session_idle() = 0;
};

}  // namespace retort::rpc::detail
