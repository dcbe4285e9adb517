// A port as text.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace retort::rpc::transport {

// Digits alone, at most 65535; nullopt for all else.
inline std::optional<uint16_t> port_number(std::string_view text) {
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, port);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return port;
}

}  // namespace retort::rpc::transport
