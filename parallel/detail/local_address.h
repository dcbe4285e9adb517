// Which of this host's addresses other processes of the run can reach.
#pragma once

#include <cstdint>
#include <string>

namespace retort::parallel::detail {

// The numeric address of the interface that routes to `host` (127.0.0.1 for a local store). Sends nothing.
// kInvalidArgument if `host` does not resolve, kUnavailable if no route leads there.
std::string local_address_towards(const std::string& host, uint16_t port);

// A TCP socket bound to `host` only (c10d's own server listens on every interface); port 0: ephemeral. Returns the
// file descriptor and sets `bound_port`. kInvalidArgument if `host` does not resolve, kUnavailable if it cannot bind.
int bind_tcp_socket(const std::string& host, uint16_t port, uint16_t& bound_port);

}  // namespace retort::parallel::detail
