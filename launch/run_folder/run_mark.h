// A file in the run folder that shows whether two hosts see the same folder, and that the processes
// which the hosts of a run have started are gone.
#pragma once

#include <filesystem>
#include <string>

#include "base/deadline.h"
#include "base/process/owned_fd.h"
#include "base/units.h"

namespace retort::launch {

inline constexpr const char* kRunMark = ".hosts";

// Of the launcher: waits until no process of an earlier start is left on any host, writes something
// random and returns it. kUnavailable at the timeout, or if the file cannot be written.
std::string make_run_mark(const std::filesystem::path& run_folder, Duration timeout);

// Waits until no process of an earlier start is left on any host, and changes nothing. kUnavailable
// at the deadline.
void wait_for_hosts(const std::filesystem::path& run_folder, const Deadline& deadline);

struct RunMark {
  std::string text;
  OwnedFd hold;  // whoever has it open is waited for by the next launcher
};
// Read by a host. kUnavailable naming the path if there is none.
RunMark read_run_mark(const std::filesystem::path& run_folder);

// Removes the mark if it is this one; one that a launcher has made meanwhile stays. kUnavailable if
// there is none.
void remove_run_mark(const std::filesystem::path& run_folder, const std::string& text);

}  // namespace retort::launch
