// What the launchers of a run leave for each other in its folder: where the launcher is, of a run
// that outlives its launchers (launch.launcher_lost), and the id of the start that they keep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/process/owned_fd.h"

namespace retort::launch {

// Names of files in the run folder.
inline constexpr const char* kLauncherAddress = ".launcher";
inline constexpr const char* kLauncherLock = ".launcher.lock";
inline constexpr const char* kLauncherRun = ".launcher.run";

struct LauncherAddress {
  std::string host;
  uint16_t port = 0;
  int64_t number = 0;  // of the run's launchers, the first one's is 0

  bool operator==(const LauncherAddress&) const = default;
};

// Says where the next launcher of the run is, for its processes, which look for it when the one
// before is gone. kUnavailable.
void announce_launcher(const std::filesystem::path& run_folder, const std::string& host,
                       uint16_t port);
// What was written last; nullopt if nothing was, or it cannot be read now.
std::optional<LauncherAddress> read_launcher_address(const std::filesystem::path& run_folder);

// A new id of one start of the run: its processes prove it beside the secret, so that those of
// another start, or of another run with the same launch.secret_file, are strangers to them.
std::string new_run_id(const std::filesystem::path& run_folder);
// Leaves it for the next launcher. kUnavailable.
void keep_run_id(const std::filesystem::path& run_folder, const std::string& id);
// The id of the start whose processes live. kUnavailable if none was left.
std::string read_run_id(const std::filesystem::path& run_folder);

// A lock that a launcher holds for as long as it keeps the run, and that nothing which it starts
// holds.
class LauncherLock {
 public:
  // kUnavailable where another launcher keeps the run.
  explicit LauncherLock(const std::filesystem::path& run_folder);

 private:
  OwnedFd file_;
};

}  // namespace retort::launch
