// The pipes between a supervisor and its children.
#pragma once

#include <array>
#include <string>

#include "launch/backends/child_process.h"

namespace retort::launch {

// All close at exec and throw kResourceExhausted when the system has no descriptor left.

// Read end, write end.
std::array<OwnedFd, 2> make_pipe();
// Two ends of a SOCK_SEQPACKET socket, for StatusPipe.
std::array<OwnedFd, 2> make_status_channel();
// A pipe's read end that holds `text` and then ends.
OwnedFd pipe_with(const std::string& text);

}  // namespace retort::launch
