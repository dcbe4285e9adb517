// What every socket of ours is told.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>

namespace retort::rpc::transport {

// A peer that is gone without a word (a pulled cable, a firewall that forgot the connection) is
// noticed: on an idle connection after keepalive_idle + keepalive_count * keepalive_interval, on
// one that sends after user_timeout. All whole seconds but the last.
struct SocketOptions {
  std::chrono::seconds keepalive_idle{15};
  std::chrono::seconds keepalive_interval{5};
  int keepalive_count = 3;
  std::chrono::milliseconds user_timeout{30'000};
};

// For connections whose peer counts as lost once it is silent for longer than `peer_timeout`: the
// system waits half as long again before it gives one up, and at least as long as the options above
// say, so that no cut which is shorter ends a connection.
SocketOptions outlasting(std::chrono::milliseconds peer_timeout);

// Also NODELAY, and closed in the programs that this process starts. What the system does not know
// is left out.
void apply(const SocketOptions& options, boost::asio::ip::tcp::socket& socket);

}  // namespace retort::rpc::transport
