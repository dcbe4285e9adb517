// One Agent::connect(): tries the address again and again until a session is up, a final error, or
// the deadline. Lives on the loop thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "rpc/detail/session.h"
#include "rpc/detail/session_host.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/dial.h"

namespace retort::rpc::detail {

class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(SessionHost& host, std::string peer, PeerAddress address, Deadline deadline,
            Agent::Attempts attempts, Promise<Empty> promise);
  void start();
  void abort(const Error& error) { finish(&error); }

 private:
  void attempt();
  void on_proven(transport::HandshakeResult result);
  void retry(const Error& reason);
  void finish(const Error* error);

  SessionHost& host_;
  const std::shared_ptr<Loop> loop_;
  const std::string peer_;
  const PeerAddress address_;
  const Agent::Attempts attempts_;
  Promise<Empty> promise_;
  std::shared_ptr<transport::PeerDial> dial_;
  boost::asio::steady_timer deadline_timer_, retry_timer_;
  const Deadline deadline_;
  transport::RetryPause pause_;
  std::string last_reason_ = "no answer";
  std::weak_ptr<Session> session_;
  bool finished_ = false;
};

}  // namespace retort::rpc::detail
