// Where a peer's port is: "host:port", with a name, an IPv4 or, in brackets, an IPv6 address.
#pragma once

#include <string>

namespace retort::rpc::detail {

struct PeerAddress {
  std::string host;
  std::string port;  // digits, 1 to 65535
};

// "host:port" or "[v6]:port"; kInvalidArgument.
PeerAddress parse_address(const std::string& address);

}  // namespace retort::rpc::detail
