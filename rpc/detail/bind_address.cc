#include "rpc/detail/bind_address.h"

#include <boost/asio/ip/address.hpp>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/network_interfaces.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/port_number.h"
#include "rpc/transport/tls_context.h"

namespace retort::rpc::detail {
namespace {

using transport::port_number;

// True for an address that means all interfaces.
bool is_unspecified(const std::string& bind) {
  boost::system::error_code not_numeric;
  const auto address = boost::asio::ip::make_address(bind, not_numeric);
  return !not_numeric && address.is_unspecified();
}

}  // namespace

std::string resolve_bind(const std::string& bind) {
  if (bind == "auto") return "127.0.0.1";
  if (is_unspecified(bind))
    throw Error(ErrorCode::kInvalidArgument,
                "rpc.bind must be the address of one interface; peers connect to it")
        .with("bind", bind);

  try {
    const std::vector<InterfaceAddress> all = interface_addresses();
    const bool is_here = is_interface_choice(bind, all);
    return choose_address(is_here ? bind : resolve_host(bind).at(0), all).address;
  } catch (const Error& error) {
    throw Error(error.code(), "rpc.bind: " + error.message()).with("bind", bind);
  }
}

transport::PortRange parse_ports(const std::string& ports) {
  const auto dash = ports.find('-');
  const auto first = port_number(std::string_view(ports).substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : port_number(std::string_view(ports).substr(dash + 1));
  const bool range = dash != std::string::npos;
  if (!first || !last || *first > *last || (range && *first == 0))
    throw Error(ErrorCode::kInvalidArgument,
                "rpc.port is a number, a range like \"7000-7100\", or 0: any that is free")
        .with("port", ports);
  return {.first = *first, .last = *last};
}

bool encrypts(Encryption encryption, const std::string& host) {
  if (encryption != Encryption::kAuto) return encryption == Encryption::kAlways;
  return !is_loopback_host(host);
}

transport::StreamFactory streams_for(const transport::Identity& identity, Encryption encryption,
                                     const std::string& host,
                                     std::shared_ptr<transport::TlsThreads> threads) {
  if (!encrypts(encryption, host)) return transport::StreamFactory();
  return transport::StreamFactory(
      std::make_shared<transport::TlsContext>(identity.credentials, std::move(threads)));
}

std::string advertised(const std::string& advertise, const std::string& bound) {
  if (advertise.empty()) return bound;
  const std::string port = parse_address(bound).port;
  // An IPv6 address stands in brackets, with or without a port.
  const auto bracket = advertise.rfind(']');
  const bool has_port =
      advertise.find(':', bracket == std::string::npos ? 0 : bracket) != std::string::npos;
  const std::string published = has_port ? advertise : advertise + ":" + port;
  (void)parse_address(published);  // refuses what nobody could connect to
  return published;
}

}  // namespace retort::rpc::detail
