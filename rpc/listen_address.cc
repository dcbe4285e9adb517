#include "rpc/listen_address.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <utility>
#include <vector>

#include "base/network_interfaces.h"
#include "rpc/detail/bind_address.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/listening_ports.h"
#include "rpc/transport/port_number.h"

namespace retort::rpc {

std::string listen_address(const std::string& bind, const std::string& rendezvous, uint16_t port) {
  if (bind != "auto") return detail::resolve_bind(bind);

  // The route to the rendezvous shows at which interface the other processes reach this one.
  const std::string own = address_towards(rendezvous, port);
  if (is_loopback_host(rendezvous) || !is_loopback_address(own)) return own;
  try {
    // The rendezvous is a name of this host itself, to which the route leads over loopback; other
    // hosts do not come in there.
    return only_outer_address(interface_addresses()).address;
  } catch (const Error& error) {
    throw Error(error.code(), "rpc.bind: auto does not do where '" + rendezvous +
                                  "' is this host's own name: " + error.message());
  }
}

std::string rendezvous_address(const std::string& bind, const std::string& rendezvous,
                               uint16_t port) {
  const std::vector<InterfaceAddress> all = interface_addresses();
  for (const std::string& address : resolve_host(rendezvous)) {
    const bool is_listed = std::any_of(all.begin(), all.end(), [&](const InterfaceAddress& one) {
      return one.is_up && one.address == address;
    });
    // 127.0.0.2 is not listed; a name that leads to loopback is one for this host alone.
    const bool loops = is_loopback_address(address);
    if (loops ? is_loopback_host(rendezvous) : is_listed) return address;
  }
  return listen_address(bind, rendezvous, port);
}

Encryption settled_encryption(Encryption encryption, const std::string& rendezvous) {
  return detail::encrypts(encryption, rendezvous) ? Encryption::kAlways : Encryption::kNever;
}

int64_t count_free_ports(const std::string& ports, const std::string& address, int64_t wanted) {
  const transport::PortRange range = detail::parse_ports(ports);
  boost::asio::io_context io;
  // Each port that was opened stays open while the others are tried.
  std::vector<boost::asio::ip::tcp::acceptor> open;
  for (int port = range.first; port <= range.last; ++port) {
    if (static_cast<int64_t>(open.size()) == wanted) break;
    const auto one = static_cast<uint16_t>(port);
    try {
      for (auto& acceptor : transport::open_ports(io, {address}, {.first = one, .last = one}))
        open.push_back(std::move(acceptor));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
  }
  return static_cast<int64_t>(open.size());
}

bool is_port_taken(const Error& error) {
  return std::ranges::any_of(error.context(), [](const auto& pair) {
    return pair.first == transport::kListenCause && pair.second == transport::kPortTaken;
  });
}

HostPort parse_host_port(const std::string& address) {
  const detail::PeerAddress parsed = detail::parse_address(address);
  return {parsed.host, *transport::port_number(parsed.port)};
}

}  // namespace retort::rpc
