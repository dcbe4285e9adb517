// Running a program to its end, within a time.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort {

// How a program ended, and what it printed.
struct ProgramEnd {
  // "" if it exited with code 0, else "it exited with code 3", "it was killed after 5s" or the like
  std::string what;
  std::string output;    // of stdout and stderr, in the order in which they were written
  bool is_late = false;  // it had not ended in time
};

// Runs `argv` with an empty stdin and waits until it has ended; of what it prints all is read, and
// the last `kept_bytes` are kept. One that has not ended after `timeout`, or when `give_up` becomes
// true, is killed with its process group; so is what it leaves behind.
//
// kInvalidArgument if it cannot be started, kResourceExhausted if there is no room for it.
// Threads: any; `give_up` may be set by another. Waits at most `timeout`, and seven seconds.
ProgramEnd run_to_end(const std::vector<std::string>& argv, Duration timeout,
                      const std::atomic<bool>& give_up, size_t kept_bytes);

// The same for a program whose words matter only where it fails, in one text: "" if it exited with
// code 0, else what went wrong, and the last 2,000 bytes that it printed. One that cannot be
// started is told there, too.
std::string run_program(const std::vector<std::string>& argv, Duration timeout,
                        const std::atomic<bool>& give_up);

}  // namespace retort
