#include "rpc/transport/listening_ports.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <set>

#include "base/error.h"
#include "rpc/transport/open_socket.h"

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;
using Acceptors = std::vector<tcp::acceptor>;
constexpr int kEphemeralAttempts = 16;

std::vector<boost::asio::ip::address> addresses_of(boost::asio::io_context& io,
                                                   const std::vector<std::string>& hosts) {
  std::set<boost::asio::ip::address> addresses;
  for (const auto& host : hosts) {
    error_code code;
    const auto numeric = boost::asio::ip::make_address(host, code);
    if (!code) {
      addresses.insert(numeric);
      continue;
    }
    const auto results = tcp::resolver(io).resolve(host, "", tcp::resolver::passive, code);
    if (code)
      throw Error(ErrorCode::kUnavailable, "the name to listen at does not resolve")
          .with("host", host)
          .with("reason", code.message());
    for (const auto& entry : results)
      addresses.insert(entry.endpoint().address());
  }
  return {addresses.begin(), addresses.end()};
}

error_code listen_at(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code code = open_socket(acceptor, endpoint.protocol());
  if (!code) acceptor.set_option(tcp::acceptor::reuse_address(true), code);
  // Otherwise the port of IPv6 takes that of IPv4 too.
  if (!code && endpoint.address().is_v6())
    acceptor.set_option(boost::asio::ip::v6_only(true), code);
  if (!code) acceptor.bind(endpoint, code);
  if (!code) acceptor.listen(boost::asio::socket_base::max_listen_connections, code);
  return code;
}

// Listens at all addresses at one port, or at none. With port 0 the system chooses one at the first
// address, which the others then take.
Acceptors listen_at_port(boost::asio::io_context& io,
                         const std::vector<boost::asio::ip::address>& addresses, uint16_t port,
                         error_code& code) {
  Acceptors acceptors;
  for (const auto& address : addresses) {
    tcp::acceptor acceptor(io);
    code = listen_at(acceptor, {address, port});
    if (code) return {};
    port = acceptor.local_endpoint().port();
    acceptors.push_back(std::move(acceptor));
  }
  return acceptors;
}

}  // namespace

Acceptors open_ports(boost::asio::io_context& io, const std::vector<std::string>& hosts,
                     PortRange ports) {
  const uint16_t last = std::max(ports.first, ports.last);
  if (hosts.empty() || (ports.last != 0 && ports.last < ports.first))
    throw Error(ErrorCode::kInvalidArgument, "an agent needs a host and a range of ports")
        .with("first", ports.first)
        .with("last", ports.last);
  const auto addresses = addresses_of(io, hosts);

  // A port that is free at one address may be taken at the next.
  error_code code;
  const int attempts = ports.first == 0 ? kEphemeralAttempts : last - ports.first + 1;
  for (int i = 0; i < attempts; ++i) {
    const auto port = static_cast<uint16_t>(ports.first == 0 ? 0 : ports.first + i);
    auto acceptors = listen_at_port(io, addresses, port, code);
    if (!code) return acceptors;
  }
  const auto error =
      Error(ErrorCode::kUnavailable, "cannot listen on the control port: " + code.message())
          .with("bind_host", hosts.front())
          .with("port", ports.first)
          .with("last_port", last);
  if (code == boost::asio::error::address_in_use) throw error.with(kListenCause, kPortTaken);
  throw error;
}

}  // namespace retort::rpc::transport
