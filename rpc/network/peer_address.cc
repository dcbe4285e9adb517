#include "rpc/network/peer_address.h"

#include "base/error.h"
#include "rpc/transport/port_number.h"

namespace retort::rpc::detail {

PeerAddress parse_address(const std::string& address) {
  PeerAddress parsed;
  const auto colon = address.rfind(':');
  if (colon != std::string::npos) parsed = {address.substr(0, colon), address.substr(colon + 1)};
  const bool brackets =
      parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
  if (brackets) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);

  const bool has_port = transport::port_number(parsed.port).value_or(0) != 0;
  const bool bare_v6 = !brackets && parsed.host.find(':') != std::string::npos;
  if (parsed.host.empty() || bare_v6 || !has_port)
    throw Error(ErrorCode::kInvalidArgument, "an address is host:port or [ipv6]:port")
        .with("address", address);
  return parsed;
}

}  // namespace retort::rpc::detail
