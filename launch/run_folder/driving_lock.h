// Whether any process drives a run: what the serving ones ask when the launcher, which knew, is
// gone.
#pragma once

#include <filesystem>

#include "base/process/owned_fd.h"

namespace retort::launch {

// Name of the lock's file in the run folder.
inline constexpr const char* kDrivingLock = ".driving";

// Held by a driving process from the moment it has something to save until it ends, however it
// ends; shared with the other driving ones (flock). A file system without locks costs a warning:
// whether anybody drives cannot be known there and counts as so. Serving processes whose launcher
// is lost then stay for launch.stop_timeout, and with launcher_lost: continue until they are ended.
class DrivingLock {
 public:
  explicit DrivingLock(const std::filesystem::path& run_folder);

 private:
  OwnedFd file_;
};

// Whether a process holds a DrivingLock in this folder; true if that cannot be known. Never waits.
bool anyone_drives(const std::filesystem::path& run_folder);

}  // namespace retort::launch
