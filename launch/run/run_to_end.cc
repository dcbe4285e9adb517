#include "launch/run/run_to_end.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "launch/backends/run_store.h"
#include "launch/run/open_folder.h"
#include "launch/run/run_once.h"
#include "launch/run_folder/launcher_address.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// How long a start waits for the folder while what is left of a run that has just ended goes.
constexpr Duration kEndOfRun{15'000};
constexpr Duration kLocksOfALostHost{120'000};

// Processes of a host that was cut off hold the folder until they have ended by themselves; those
// of one without power until the file server takes their locks away (NFS: 90 s by default).
RunFolder open_folder(const recipes::Recipe& recipe, const StartHow& how,
                      const RunFolder::WhenLocked& when_locked) {
  if (!how.by_itself) return open_run_folder(recipe, how.mode, kEndOfRun, when_locked);
  const Duration until_ended = recipe.launch.stop_timeout + recipe.rpc.peer_timeout;
  return open_run_folder(recipe, how.mode, std::max(until_ended, kLocksOfALostHost) + kEndOfRun,
                         when_locked);
}

// What a start has besides its folder. The store closes before the hosts are left, and they are
// before the folder is free.
struct Surroundings {
  FolderLock lock;  // null: they end before the folder itself does
  std::unique_ptr<RunBackend::Start> start;
  std::unique_ptr<rpc::RendezvousServer> store;
};

Surroundings find_surroundings(const WholeRun& run, const rpc::RendezvousAccess& access,
                               const Beginning& how) {
  Surroundings found{
      .lock = nullptr, .start = run.backend.begin(how, run.signals), .store = nullptr};
  const recipes::Recipe& recipe = found.start->recipe();
  found.store.reset(new rpc::RendezvousServer(
      serve_store(recipe, access, found.start->bind(), recipe.launch.rendezvous.port)));
  return found;
}

// Leaves in the folder what a launcher needs that takes the run over from this one. The lock keeps
// that one out for as long as this one lives.
std::optional<LauncherLock> keep_for_next(const RunBackend& backend, const fs::path& folder,
                                          const std::string& run_id) {
  if (!backend.can_be_attached()) return std::nullopt;
  fs::remove(folder / kLauncherAddress);  // of a start that is over
  keep_run_id(folder, run_id);
  return LauncherLock(folder);
}

}  // namespace

StartEnd start_run(const WholeRun& run, const StartHow& how) {
  const rpc::RendezvousAccess access = run.backend.new_access();

  // WhenLocked runs once the folder is this run's and before an earlier run is removed from it. The
  // store and the hosts must be there by then, or --overwrite would remove a run for one that
  // cannot begin. They keep the folder's lock, as it may still fail to be made ready.
  Surroundings first;
  const RunFolder folder = open_folder(run.recipe, how, [&](const FolderLock& lock) {
    if (run.backend.begins_in_folder(how.mode)) return std::set<fs::path>{};
    first = find_surroundings(
        run, access,
        {.by_itself = how.by_itself, .replaces = how.mode == RunFolderMode::kOverwrite});
    first.lock = lock;
    return run.backend.files();
  });

  // Declared after the folder: where one of the next steps fails, hosts end before it is free.
  Surroundings found = std::move(first);
  const std::optional<LauncherLock> lock = keep_for_next(run.backend, folder.path(), access.run);
  if (!found.start) found = find_surroundings(run, access, {.by_itself = how.by_itself});

  // Declared after the lock: hosts end before it is free for another launcher.
  const Surroundings there = std::move(found);
  const recipes::Recipe& recipe = there.start->recipe();

  // Lost hosts may leave the student fewer replicas. The folder then describes what is really run.
  if (recipe.student().world.dp != run.recipe.student().world.dp) describe_run(recipe, folder);

  const std::unique_ptr<StartProcesses> processes = there.start->enter(folder);
  return run.backend.after_end(run_once({.recipe = recipe,
                                         .folder = folder,
                                         .store = *there.store,
                                         .access = access,
                                         .resume = how.mode == RunFolderMode::kResume,
                                         .writes_cache = run.writes_cache,
                                         .restarts_left = how.restarts_left,
                                         .processes = *processes,
                                         .last_line = run.last_line},
                                        run.signals));
}

int go_on(const WholeRun& run, StartEnd end) {
  const int64_t most = run.recipe.launch.max_restarts;
  for (int64_t restart = 1; end.goes_on; ++restart) {
    std::cerr << "note: the run goes on from its last checkpoint, " << restart << " of " << most
              << " times (launch.max_restarts)" << std::endl;
    end = start_run(
        run, {.mode = RunFolderMode::kResume, .restarts_left = most - restart, .by_itself = true});
  }
  return end.exit_code;
}

}  // namespace retort::launch
