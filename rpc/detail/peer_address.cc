#include "rpc/detail/peer_address.h"

#include <charconv>
#include <cstdint>

#include "base/error.h"

namespace retort::rpc::detail {

PeerAddress parse_address(const std::string& address) {
  PeerAddress parsed;
  const auto colon = address.rfind(':');
  if (colon != std::string::npos) parsed = {address.substr(0, colon), address.substr(colon + 1)};
  const bool brackets =
      parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
  if (brackets) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);

  uint16_t port = 0;
  const char* end = parsed.port.data() + parsed.port.size();
  const auto read = std::from_chars(parsed.port.data(), end, port);
  const bool bare_v6 = !brackets && parsed.host.find(':') != std::string::npos;
  if (parsed.host.empty() || bare_v6 || read.ec != std::errc() || read.ptr != end || port == 0)
    throw Error(ErrorCode::kInvalidArgument, "an address is host:port or [ipv6]:port")
        .with("address", address);
  return parsed;
}

}  // namespace retort::rpc::detail
