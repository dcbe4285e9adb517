// The run's folder: whether it can be written, has room, is free, and who still works in it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/process/owned_fd.h"
#include "launch/doctor/checks.h"
#include "launch/run_folder/run_folder.h"
#include "launch/status/status_file.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "recipes/run/inputs/student_model.h"

namespace retort::launch::doctor {
namespace {

namespace fs = std::filesystem;

bool asks_for_a_run(const HostShare& share) { return share.recipe != nullptr && share.launches; }

// Whoever of this host holds a lock on the file, by /proc/locks: "12: FLOCK  ADVISORY  WRITE 4711
// fe:01:1234 0 EOF".
std::string holder_of(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return "";
  const std::string inode = ":" + std::to_string(info.st_ino);
  std::ifstream in("/proc/locks");
  for (std::string line; std::getline(in, line);) {
    std::istringstream parts(line);
    std::string number, kind, advisory, mode, pid, place;
    parts >> number >> kind >> advisory >> mode >> pid >> place;
    if (kind == "FLOCK" && place.ends_with(inode)) return pid;
  }
  return "";
}

// Whether the arguments, which end in a zero each, are those of a process of the run
// (role_arguments, launch/backends/rank_spec.h).
bool is_of_run(const std::string& arguments, const fs::path& folder) {
  const std::string zero(1, '\0');
  return arguments.find(zero + "role" + zero) != std::string::npos &&
         arguments.find(zero + "--run-folder" + zero + folder.string() + zero) != std::string::npos;
}

// The process of a lock may be gone while another host, or a file system, still has the lock.
Finding locked_by(const fs::path& file) {
  const std::string pid = holder_of(file);
  if (!pid.empty())
    return problem("process " + pid + " of this host holds " + file.string(),
                   "a run uses the folder: wait for it, stop it, or choose another output_dir");
  return problem(
      file.string() + " is locked, by no process of this host",
      "a run on another host uses the folder; if there is none, the file server has kept "
      "the lock of one that is gone: remove the file");
}

}  // namespace

int64_t checkpoint_bytes(const recipes::Recipe& recipe) {
  const int64_t each = recipe.student().dtype == recipes::FloatType::kFloat32 ? 12 : 14;
  return each * recipes::role_config(recipe, recipes::Recipe::kDrivingRole).num_parameters();
}

fs::path nearest_folder(const fs::path& path) {
  fs::path folder = path;
  while (!fs::is_directory(folder) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

std::string shown_bytes(double bytes) {
  const char* unit = "KiB";
  double value = bytes / 1024;
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.1f %s", value, unit);
  return text;
}

// Writes for real, because only that finds a read-only mount, a quota, or a server that forbids it.
std::optional<Finding> check_output_folder(const HostShare& share) {
  if (!asks_for_a_run(share)) return std::nullopt;
  const fs::path folder = run_folder_of(*share.recipe), near = nearest_folder(folder);
  const fs::path file = near / (".retort-doctor" + temporary_suffix());
  const OwnedFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written = fd.get() >= 0 && ::write(fd.get(), "x", 1) == 1;
  const int why = errno;
  if (fd.get() >= 0) ::unlink(file.c_str());
  if (!written)
    return problem("cannot write into " + near.string() + ": " + std::strerror(why),
                   "make it writable, or choose another output_dir");

  if (fs::exists(folder / kResolvedRecipe))
    return fine(folder.string() + " can be written; it holds a run: --resume or --overwrite");
  return fine(folder.string() + (near == folder ? " can be written" : " can be made"));
}

std::optional<Finding> check_disk(const HostShare& share) {
  if (!asks_for_a_run(share)) return std::nullopt;
  const fs::path near = nearest_folder(run_folder_of(*share.recipe));
  struct statvfs room {};
  if (::statvfs(near.c_str(), &room) != 0)
    throw Error(ErrorCode::kUnavailable, near.string() + ": " + std::strerror(errno));
  const double free = static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize);

  // A new checkpoint is complete before the oldest goes; those that are there stay or make room.
  const int64_t kept = share.recipe->train.save_total_limit;
  const auto there =
      static_cast<int64_t>(recipes::list_checkpoints(run_folder_of(*share.recipe)).size());
  const auto each = static_cast<double>(checkpoint_bytes(*share.recipe));
  const double most = each * static_cast<double>(std::max<int64_t>(1, kept + 1 - there));
  const std::string what = shown_bytes(free) + " free at " + near.string() + "; a checkpoint has " +
                           shown_bytes(each) + ", and " +
                           (kept == 0 ? "all" : std::to_string(kept)) + " are kept";
  const std::string action =
      "make room, lower train.save_total_limit, or choose another output_dir";
  if (free < each) return problem(what, action);
  if (free < most) return warning(what, action);
  return fine(what);
}

std::optional<Finding> check_lock(const HostShare& share) {
  if (!asks_for_a_run(share)) return std::nullopt;
  const fs::path folder = run_folder_of(*share.recipe), file = folder / kRunLock;
  const OwnedFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return fine("no run uses the folder");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return locked_by(file);
    throw Error(ErrorCode::kUnavailable, file.string() + ": " + std::strerror(errno));
  }

  // Nobody has it: whatever the status says, no launcher of this file system lives.
  const fs::path status = folder / kStatusFile;
  if (fs::exists(status) && !read_run_status(folder).ended())
    return warning("the last run in the folder lost its launcher",
                   "`retort status` says where it was; --resume goes on from its checkpoint");
  return fine("no run uses the folder");
}

std::optional<Finding> check_leftovers(const HostShare& share) {
  if (share.recipe == nullptr) return std::nullopt;
  std::string found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string arguments = read_what_is_there(entry.path() / "cmdline");
    if (is_of_run(arguments, run_folder_of(*share.recipe))) found += " " + pid;
  }
  if (found.empty()) return fine("no process of this run is here");
  return problem("processes of this run are here:" + found,
                 "wait for them (they end some seconds after their launcher), or kill them");
}

}  // namespace retort::launch::doctor
