#include "rpc/listen_address.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/network_interfaces.h"
#include "rpc/detail/bind_address.h"
#include "rpc/detail/peer_address.h"
#include "rpc/transport/port_number.h"

namespace retort::rpc {

std::string listen_address(const std::string& bind, const std::string& rendezvous, uint16_t port) {
  if (bind != "auto") return detail::resolve_bind(bind);

  const std::string own = address_towards(rendezvous, port);
  if (is_loopback_host(rendezvous) || !is_loopback_address(own)) return own;
  try {
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

HostPort parse_host_port(const std::string& address) {
  const detail::PeerAddress parsed = detail::parse_address(address);
  return {parsed.host, *transport::port_number(parsed.port)};
}

}  // namespace retort::rpc
