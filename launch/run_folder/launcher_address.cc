#include "launch/run_folder/launcher_address.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_text.h"

namespace retort::launch {

void announce_launcher(const std::filesystem::path& run_folder, const std::string& host,
                       uint16_t port) {
  // Each launcher has a number of its own, which tells it from one before at the same host and
  // port.
  const auto before = read_launcher_address(run_folder);
  write_file_atomically(run_folder / kLauncherAddress,
                        JsonLine()
                                .add("host", host)
                                .add("port", static_cast<int64_t>(port))
                                .add("number", before ? before->number + 1 : 1)
                                .str() +
                            "\n");
}

std::optional<LauncherAddress> read_launcher_address(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / kLauncherAddress;
  try {
    if (!std::filesystem::exists(file)) return std::nullopt;
    const auto json = nlohmann::json::parse(read_file(file));
    return LauncherAddress{.host = json.at("host").get<std::string>(),
                           .port = json.at("port").get<uint16_t>(),
                           .number = json.at("number").get<int64_t>()};
  } catch (const std::exception&) {
    // What cannot be read now counts as not written: the processes that look for a launcher look
    // again.
    return std::nullopt;
  }
}

std::string new_run_id(const std::filesystem::path& run_folder) {
  return run_folder.filename().string() + "." + random_hex(8);
}

void keep_run_id(const std::filesystem::path& run_folder, const std::string& id) {
  write_file_atomically(run_folder / kLauncherRun, id);
}

std::string read_run_id(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / kLauncherRun;
  if (!std::filesystem::exists(file))
    throw Error(ErrorCode::kUnavailable,
                file.string() +
                    " is missing: the run was started by another version of retort, "
                    "or its folder was changed; end its processes and go on with "
                    "--resume");
  return read_file(file);
}

LauncherLock::LauncherLock(const std::filesystem::path& run_folder)
    : file_(::open((run_folder / kLauncherLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  const bool is_open = file_.get() >= 0;
  if (is_open && ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) return;
  const bool is_held = is_open && errno == EWOULDBLOCK;
  throw Error(ErrorCode::kUnavailable,
              (run_folder / kLauncherLock).string() + ": " +
                  (is_held ? "the run has a launcher, which lives" : std::strerror(errno)));
}

}  // namespace retort::launch
