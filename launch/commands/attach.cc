#include "launch/commands/attach.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_name.h"
#include "launch/backends/rank_spec.h"
#include "launch/backends/run_backend.h"
#include "launch/backends/run_store.h"
#include "launch/backends/start_processes.h"
#include "launch/commands/launch.h"
#include "launch/document/recipe_file.h"
#include "launch/placement/placement.h"
#include "launch/process/child_process.h"
#include "launch/process/signal_catcher.h"
#include "launch/run/run_backends.h"
#include "launch/run/run_once.h"
#include "launch/run/run_to_end.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/run_folder/run_folder.h"
#include "launch/status/run_status.h"
#include "launch/status/status_file.h"
#include "launch/writers/stderr_writer.h"
#include "parallel/device_module.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

using recipes::Recipe;

[[noreturn]] void refuse_to_attach(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "--attach: " + why);
}

// Before anything is asked or written.
void check_run(const Recipe& recipe, const RunStatus& status, const fs::path& folder) {
  if (recipe.launch.launcher_lost != recipes::LauncherLost::kContinue)
    refuse_to_attach("the processes of " + folder.string() +
                     " end with their launcher (launch.launcher_lost: stop); --resume goes on from "
                     "its newest checkpoint");
  if (status.ended())
    refuse_to_attach("the run in " + folder.string() + " has ended, with exit code " +
                     std::to_string(*status.exit_code));
  const bool is_local = recipe.launch.backend == recipes::Backend::kLocal;
  if (is_local && status.launcher_host != host_name())
    refuse_to_attach("the run in " + folder.string() + " is on host " + status.launcher_host +
                     ", this one is " + host_name());
}

// Those that live, where the backend knows them to be.
class AttachedProcesses final : public StartProcesses {
 public:
  AttachedProcesses(const Recipe& recipe, const RunFolder& folder, const RunStatus& status,
                    StartProcesses& where)
      : recipe_(recipe), folder_(folder), status_(status), where_(where) {}

  // Each in its life of now; in the next one it is a child of this launcher or of a host's.
  std::vector<ProcessSpec> processes(const RunStart& start) override {
    std::vector<ProcessSpec> specs;
    for (const RunStatus::Process& process : status_.processes) {
      const int64_t threads = recipe_.roles.at(process.role).world.threads;
      ChildContext context = rank_context_of(recipe_, start, process.role, process.rank);
      context.restart = context.life = process.restarts;
      context.threads = threads_per_process(threads, recipe_.num_processes());
      context.ranks_on_host = all_ranks(recipe_);
      ProcessSpec spec = child_spec(recipe_, folder_, std::move(context));
      place(spec);
      spec.joined = JoinedSpec{.pid = process.pid, .is_replaceable = true};
      specs.push_back(std::move(spec));
    }
    return specs;
  }
  Backend& backend() override { return where_.backend(); }
  void place(ProcessSpec& spec) const override { where_.place(spec); }
  void place_again(const std::vector<ProcessSpec*>& replica) override {
    where_.place_again(replica);
  }

 private:
  const Recipe& recipe_;
  const RunFolder& folder_;
  const RunStatus& status_;
  StartProcesses& where_;
};

// The start that the launcher before has begun, to its end.
StartEnd attach(const WholeRun& run, const RunFolder& folder, const RunStatus& status) {
  const std::unique_ptr<RunBackend::Start> start = run.backend.attach(folder, status, run.signals);
  const rpc::RendezvousAccess access{.run = read_run_id(folder.path()),
                                     .secret = run_secret(run.recipe),
                                     .encryption = run.recipe.rpc.encryption};
  rpc::RendezvousServer store =
      serve_store(run.recipe, access, start->bind(), run.recipe.launch.rendezvous.port);
  announce_launcher(folder.path(), store.host(), store.port());

  const std::unique_ptr<StartProcesses> where = start->enter(folder);
  AttachedProcesses processes(run.recipe, folder, status, *where);
  return run_once({.recipe = run.recipe,
                   .folder = folder,
                   .store = store,
                   .access = access,
                   .attached = true,
                   .restarts_left = run.recipe.launch.max_restarts,
                   .processes = processes,
                   .last_line = run.last_line},
                  run.signals);
}

}  // namespace

int run_attach(const std::string& run_folder) {
  write_stderr_in_background();
  const fs::path path = fs::absolute(run_folder).lexically_normal();
  const RunStatus status = read_run_status(path);
  const LaunchCommand command{.recipe = (path / kResolvedRecipe).string()};
  const LoadOptions options{.cuda = parallel::DeviceModule::present(), .check_files = false};
  const Recipe recipe = load_recipe(command.recipe, {}, options);
  if (recipe.launch.log_format == LogFormat::kJson) set_log_format(LogFormat::kJson);
  check_run(recipe, status, path);

  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});  // as run_launch has it
  const std::unique_ptr<RunBackend> backend =
      make_run_backend({.recipe = recipe, .recipe_file = command.recipe});
  const WholeRun run{.recipe = recipe,
                     .backend = *backend,
                     .signals = signals,
                     .last_line = [&](const SupervisorResult& result, const fs::path& folder) {
                       return last_line(command, result, folder);
                     }};
  StartEnd end;
  {
    const LauncherLock lock(path);
    const RunFolder folder(path, RunFolderMode::kAttach);
    if (!anyone_drives(path))
      refuse_to_attach("no process of " + path.string() + " trains; --resume goes on from its " +
                       "newest checkpoint");
    end = attach(run, folder, status);
  }
  return go_on(run, end);
}

}  // namespace retort::launch
