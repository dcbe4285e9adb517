// One Agent::connect(): tries the address again and again until a session is up, a final error, or
// the deadline. Lives on the loop thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "rpc/detail/session.h"

namespace retort::rpc::detail {

struct HostPort {
  std::string host;
  std::string port;
};
// "host:port" or "[v6]:port"; kInvalidArgument.
HostPort parse_address(const std::string& address);

class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(SessionHost& host, std::string peer, HostPort address, Deadline deadline,
            Promise<Empty> promise);
  void start();
  void abort(const Error& error) { finish(&error); }

 private:
  void attempt();
  void connect_to(const boost::asio::ip::tcp::resolver::results_type& endpoints);
  void on_connected();
  void retry(const std::string& reason);
  void finish(const Error* error);

  SessionHost& host_;
  const std::shared_ptr<Loop> loop_;
  const std::string peer_;
  const HostPort address_;
  Promise<Empty> promise_;
  boost::asio::ip::tcp::resolver resolver_;
  std::optional<boost::asio::ip::tcp::socket> socket_;
  boost::asio::steady_timer deadline_timer_, retry_timer_;
  const Deadline deadline_;
  std::chrono::milliseconds pause_{20};
  std::string last_reason_ = "no answer";
  std::weak_ptr<Session> session_;
  bool finished_ = false;
};

}  // namespace retort::rpc::detail
