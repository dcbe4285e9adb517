// The sockets that the acceptor listens on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace retort::rpc::transport {

struct PortRange {
  uint16_t first = 0;  // 0: any port that is free
  uint16_t last = 0;   // 0: the same as first
};

// The context pair of open_ports()'s error where another process has the port, or all of a range.
inline constexpr const char* kListenCause = "cause";
inline constexpr const char* kPortTaken = "port_taken";

// Listens on one port at every address of every host: IPv4, IPv6, or names, which are resolved here
// and now. With a range, the first port that is free at all of them.
// Errors: kInvalidArgument for no host or a range that ends before it begins, kUnavailable
//   otherwise.
std::vector<boost::asio::ip::tcp::acceptor> open_ports(boost::asio::io_context& io,
                                                       const std::vector<std::string>& hosts,
                                                       PortRange ports);

}  // namespace retort::rpc::transport
