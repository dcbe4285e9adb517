#include "launch/run_folder/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/file.h"
#include "base/printable.h"
#include "base/process/owned_fd.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/run_folder/run_mark.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// Everything that a run writes at the top of its folder; prefixes end in '-' or '.'.
constexpr std::array<std::string_view, 29> kNames{
    kResolvedRecipe, kDrivingLock,    kRunMark,         kLauncherAddress, ".launcher.",
    ".incarnation",  "plan.json",     "receipts.jsonl", "contracts",      "status.json",
    "status.json.",  "metrics.jsonl", "metrics.jsonl.", "tensorboard",    kLogsFolder,
    "trace",         "templates",     "checkpoint-",    "final",          "final.tmp-",
    "cache",         "kept",          "samples",        kRunLock,         "recipe.resolved.yaml.",
    ".secret",       "slurm.",        "slurm-",         kRoleValues,
};

// The final name of a file or folder that a crash has left half written (.tmp-) or put aside
// (.old-).
std::string name_without_suffix(const std::string& name) {
  const size_t end = std::min(name.find(".tmp-"), name.find(".old-"));
  return name.substr(0, end);
}

bool written_by_a_run(const std::string& entry) {
  const std::string name = name_without_suffix(entry);
  return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view known) {
    const bool prefix = known.back() == '-' || known.back() == '.';
    return prefix ? name.starts_with(known) : name == known;
  });
}

std::vector<std::string> entries_of(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().filename() != kRunLock) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void forbid(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

[[noreturn]] void refuse_not_empty(const fs::path& path, const std::string& first) {
  forbid("output_dir " + path.string() + " is not empty (" + first +
         "...); --resume continues the run in it, --overwrite replaces it");
}

// A role is told its folder in JSON, which holds UTF-8 alone.
void refuse_no_utf8(const fs::path& path) {
  if (is_utf8(path.string())) return;
  forbid("output_dir " + printable(path.string()) +
         " has bytes that are no UTF-8; choose another name");
}

void refuse_foreign(const fs::path& path, const std::vector<std::string>& names) {
  for (const auto& name : names)
    if (!written_by_a_run(name))
      forbid("--overwrite: " + path.string() + " also holds '" + name +
             "', which no run wrote; nothing was removed");
}

// A file that cannot be read counts as one without values, because nothing of the run needs them.
RoleValues values_of(const fs::path& recipe_file) {
  try {
    return read_role_values(recipe_file).value_or(RoleValues{});
  } catch (const Error&) {
    return {};
  }
}

FolderLock open_folder_lock(const fs::path& file) {
  return std::make_shared<const OwnedFd>(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
}

// Removes `name` of the folder with all that is in it, but for files that are spared. A link that
// leads to one of them stays, and so does all that is where it leads, which may be others'. Throws
// std::filesystem::filesystem_error.
void remove_but(const std::set<fs::path>& spared, const fs::path& folder, const fs::path& name) {
  if (spared.contains(name)) return;
  const fs::path entry = folder / name;
  const bool holds_one =
      std::ranges::any_of(spared, [&](const fs::path& file) { return file.parent_path() == name; });
  if (holds_one && fs::is_symlink(fs::symlink_status(entry))) return;
  if (holds_one) {
    for (const std::string& inside : entries_of(entry))
      remove_but(spared, folder, name / inside);
    return;
  }

  fs::remove_all(entry);
}

}  // namespace

fs::path run_folder_of(const recipes::Recipe& recipe) {
  return fs::absolute(recipe.output_dir).lexically_normal();
}

RunFolderMode run_folder_mode(bool resume, bool overwrite) {
  if (resume) return RunFolderMode::kResume;
  return overwrite ? RunFolderMode::kOverwrite : RunFolderMode::kFresh;
}

RunFolder::RunFolder(fs::path path, RunFolderMode mode, Duration lock_timeout,
                     const CheckBefore& check, const WhenLocked& when_locked)
    : path_(std::move(path)) {
  // What can be refused is refused before the folder is made, locked or changed.
  refuse_no_utf8(path_);
  if (fs::exists(path_) && !fs::is_directory(path_))
    forbid("output_dir " + path_.string() + " is a file; expected a folder");
  const bool missing = !fs::exists(path_);
  const auto entries = missing ? std::vector<std::string>{} : entries_of(path_);
  if (mode == RunFolderMode::kFresh && !entries.empty()) refuse_not_empty(path_, entries.front());
  const bool goes_on = mode == RunFolderMode::kResume || mode == RunFolderMode::kAttach;
  if (goes_on && !fs::is_regular_file(resolved_recipe()))
    forbid((mode == RunFolderMode::kAttach ? "--attach: " : "--resume: ") + path_.string() +
           " holds no run (no " + kResolvedRecipe + "); start it without --resume");
  if (mode == RunFolderMode::kOverwrite) refuse_foreign(path_, entries);
  if (mode == RunFolderMode::kAttach) {
    join_lock();
    return;
  }
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + path_.string() + ": " + failed.message());
  // Processes on other hosts hold the hosts' mark and not this lock, so both are waited for:
  // nothing may be changed beside a process of an earlier start.
  const Deadline deadline = Deadline::after(lock_timeout);
  lock(lock_timeout);
  wait_for_hosts(path_, deadline);
  // Another launcher may have begun, and ended, a run here while this one waited.
  if (const auto now = entries_of(path_); mode == RunFolderMode::kFresh && !now.empty())
    refuse_not_empty(path_, now.front());

  // What the run needs to begin is made before an old run is removed, which stays where that fails.
  const auto made = when_locked ? when_locked(lock_) : std::set<fs::path>{};
  if (mode == RunFolderMode::kOverwrite) remove_run(made);
  if (mode == RunFolderMode::kResume) {
    resume_from_ = recipes::latest_checkpoint(path_);
    if (resume_from_) {
      recipe_before_ = read_file(resolved_recipe());
      values_before_ = values_of(resolved_recipe());
    }
    // The check may refuse the recipe, so it comes before the metrics are cut back.
    if (check) check(recipe_before_);
    // Without a checkpoint the run begins again, with an evaluation of step 0 if one is asked for.
    recipes::cut_back_metrics(path_, resume_from_ ? resume_from_->step : -1);
  }
}

void RunFolder::lock(Duration timeout) {
  const fs::path file = path_ / kRunLock;
  lock_ = open_folder_lock(file);
  if (lock_->get() < 0)
    throw Error(ErrorCode::kUnavailable,
                "cannot open " + file.string() + ": " + std::strerror(errno));

  // flock() knows no time limit, so the lock is tried again and again.
  const Deadline deadline = Deadline::after(timeout);
  while (::flock(lock_->get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK)
      throw Error(ErrorCode::kUnavailable,
                  "cannot lock " + file.string() + ": " + std::strerror(errno));
    if (deadline.expired())
      throw Error(ErrorCode::kUnavailable,
                  "another run uses " + path_.string() + "; wait for it to end, or stop it");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// On one host the living processes of the run hold the lock already, and not to get it is no error.
// Elsewhere it is ours now, so that nobody resumes the run beside them.
void RunFolder::join_lock() {
  lock_ = open_folder_lock(path_ / kRunLock);
  if (lock_->get() >= 0) ::flock(lock_->get(), LOCK_EX | LOCK_NB);
  resume_from_ = recipes::latest_checkpoint(path_);
}

void RunFolder::remove_run(const std::set<fs::path>& spared) const {
  const auto names = entries_of(path_);
  refuse_foreign(path_, names);

  // The recipe goes first. Without it nobody resumes what is left where something cannot be
  // removed, or takes a checkpoint that has lost some of its files for a whole one.
  bool is_run = fs::exists(resolved_recipe());
  try {
    remove_but(spared, path_, kResolvedRecipe);
    is_run = false;
    for (const auto& name : names)
      remove_but(spared, path_, name);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kUnavailable,
                "--overwrite: cannot remove " + error.path1().string() + ": " +
                    error.code().message() +
                    (is_run ? "; nothing was removed"
                            : "; the run before is removed in part and cannot be resumed; remove "
                              "the rest by --overwrite, or by hand"));
  }
}

void RunFolder::write_resolved_recipe(const std::string& yaml) const {
  write_file_atomically(resolved_recipe(), yaml);
}

void RunFolder::restore_recipe() const {
  if (!recipe_before_) return;
  write_role_values(resolved_recipe(), values_before_);
  write_resolved_recipe(*recipe_before_);
}

}  // namespace retort::launch
