// The host's end of a launcher's connection: starts and watches the processes that the launcher asks
// for, over the program's standard input and output.
#pragma once

#include <functional>
#include <string>

namespace retort::launch {

// Answers what the doctor of the launcher's host asks of this one, on a thread of its own.
using ExamineHost = std::function<std::string(const std::string& question)>;

// Until the launcher says that the run has ended, or is lost: it closes the connection, or is
// silent for rpc.peer_timeout. Then the processes here are asked to end as a launcher would ask
// them, the driving ones first, which save, and the serving ones once nobody drives the run; what
// is left beyond the time that they have is killed.
//
// Nothing that it started, and nothing that those left behind, outlives it, unless it is killed
// itself: then the processes miss their launcher (launcher_link.h) and end by themselves.
//
// Returns the exit code of the program.
int serve_as_host(ExamineHost examine);

}  // namespace retort::launch
