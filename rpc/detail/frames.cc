#include "rpc/detail/frames.h"

#include <algorithm>

namespace retort::rpc::detail {

Ready parse_ready(std::string_view body) {
  auto ready = from_bytes<Ready>(body);
  if (ready.incarnation.empty() || ready.incarnation.size() > kMaxNameBytes)
    throw Error(ErrorCode::kCorrupt, "a peer's incarnation has an impossible length")
        .with("bytes", ready.incarnation.size());
  const bool too_long = std::ranges::any_of(
      ready.devices, [](const std::string& id) { return id.empty() || id.size() > kMaxNameBytes; });
  if (ready.devices.size() > kMaxDevices || too_long)
    throw Error(ErrorCode::kCorrupt, "a peer tells impossible devices")
        .with("devices", ready.devices.size());
  if (ready.max_inflight_calls == 0) throw Error(ErrorCode::kCorrupt, "a peer that takes no calls");
  return ready;
}

ErrorCode checked_code(uint8_t code) {
  if (code > static_cast<uint8_t>(ErrorCode::kResourceExhausted))
    throw Error(ErrorCode::kCorrupt, "unknown error code").with("code", int{code});
  return static_cast<ErrorCode>(code);
}

}  // namespace retort::rpc::detail
