// What c10d does not do with TCP: listen on one interface only, and wait for a server no longer
// than a deadline.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"

namespace retort::parallel::detail {

// A TCP socket bound to `host` only (c10d's own server listens on every interface); port 0:
// ephemeral. Returns the file descriptor and sets `bound_port`. kInvalidArgument if `host` does not
// resolve, kUnavailable if it cannot bind.
int bind_tcp_socket(const std::string& host, uint16_t port, uint16_t& bound_port);

// Waits until something accepts connections at host:port, trying again while nothing does.
// kInvalidArgument if `host` does not resolve, kTimeout at the deadline. (c10d's client overruns
// its timeout and prints a backtrace at each failure.)
void wait_until_accepting(const std::string& host, uint16_t port, Deadline deadline);

}  // namespace retort::parallel::detail
