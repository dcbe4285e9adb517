// Running a program of the user's to its end, within a time.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort {

// Runs `argv` with an empty stdin and waits until it has ended; what it prints is read, and the
// last 2,000 bytes of it are kept for the answer. One that has not ended after `timeout`, or when
// `give_up` becomes true, is killed with its process group.
//
// Returns "" if it exited with code 0, else what went wrong: that it could not be started, how it
// ended, or that it was killed, and the last it printed.
// Threads: any; `give_up` may be set by another. Waits at most `timeout`, and two seconds.
std::string run_program(const std::vector<std::string>& argv, Duration timeout,
                        const std::atomic<bool>& give_up);

}  // namespace retort
