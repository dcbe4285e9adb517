// The folder of a run: made, continued or replaced by the launcher, and locked for as long as
// anything of the run lives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/process/owned_fd.h"
#include "base/units.h"
#include "launch/yaml/role_values.h"
#include "recipes/document/recipe.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"

namespace retort::launch {

// The file that RunFolder locks.
inline constexpr const char* kRunLock = ".lock";

// The folder in it for what processes write on stdout and stderr.
inline constexpr const char* kLogsFolder = "logs";

// Where a recipe's run is: its output_dir, absolute.
std::filesystem::path run_folder_of(const recipes::Recipe& recipe);

enum class RunFolderMode {
  kFresh,      // must be missing or empty
  kResume,     // must hold a run; continues at its newest complete checkpoint
  kAttach,     // must hold a run whose processes live; nothing in it is changed
  kOverwrite,  // what a run left there is removed first
};

// The mode that the flags of a command say; without either of them kFresh.
RunFolderMode run_folder_mode(bool resume, bool overwrite);

// The lock of a run's folder: whoever has it keeps the folder locked.
using FolderLock = std::shared_ptr<const OwnedFd>;

// Thread: one. The lock (flock on <folder>/.lock) is shared with every process that inherits
// lock_fd(): it is free again when the last of them has ended, so that a resumed run never meets
// processes of the one before.
class RunFolder {
 public:
  // May refuse, by throwing, to resume a run whose recipe was that (recipe_before()).
  using CheckBefore = std::function<void(const std::optional<std::string>& recipe_before)>;
  // Makes what the run needs to begin; returns what of that lies in the folder: relative paths.
  // What it made keeps the lock for as long as it lives: where the folder cannot be made ready
  // after it, nobody else may have that before it has ended.
  using WhenLocked = std::function<std::set<std::filesystem::path>(const FolderLock& lock)>;
  // kInvalidArgument: the path is no UTF-8, the folder is not empty (kFresh), holds no run
  // (kResume), or holds something that no run wrote (kOverwrite, which removes nothing then).
  // kUnavailable: it cannot be made, another run holds its lock for longer than `lock_timeout`, or
  // an earlier run cannot be removed: what is left of that is no run any more, and kOverwrite goes
  // on with it.
  // kResume also cuts metrics and TensorBoard back to the checkpoint's step, all of them if there
  // is no checkpoint yet; not if `check` throws, which it calls first. `when_locked` is called when
  // the folder is this run's and nothing in it has been changed: what it throws leaves it as it
  // was, but for what it made there itself (.hosts and the hosts' logs), and kOverwrite spares the
  // files that it returns. Not in kAttach.
  RunFolder(std::filesystem::path path, RunFolderMode mode,
            Duration lock_timeout = Duration(15'000), const CheckBefore& check = {},
            const WhenLocked& when_locked = {});

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path resolved_recipe() const { return path_ / kResolvedRecipe; }
  std::filesystem::path logs() const { return path_ / kLogsFolder; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  int lock_fd() const { return lock_->get(); }

  // Where a resumed run continues, or one goes on that is attached to; nullopt: at the beginning.
  const std::optional<recipes::CheckpointEntry>& resume_from() const { return resume_from_; }
  // The recipe of the start before, where the run is resumed from a checkpoint.
  const std::optional<std::string>& recipe_before() const { return recipe_before_; }
  void write_resolved_recipe(const std::string& yaml) const;
  // Puts that recipe back, with its values of roles.*.env; does nothing where there is none.
  void restore_recipe() const;

 private:
  void lock(Duration timeout);
  void join_lock();
  void remove_run(const std::set<std::filesystem::path>& spared) const;

  std::filesystem::path path_;
  FolderLock lock_;
  std::optional<recipes::CheckpointEntry> resume_from_;
  std::optional<std::string> recipe_before_;
  RoleValues values_before_;
};

}  // namespace retort::launch
