#include "launch/ssh/run_backend.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "launch/placement/placement.h"
#include "launch/run_folder/run_mark.h"
#include "launch/ssh/earlier_logs.h"
#include "launch/ssh/fit_to_hosts.h"
#include "launch/ssh/host_places.h"
#include "launch/ssh/run_hosts.h"
#include "launch/ssh/ssh_backend.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// How long a start waits for what an earlier run left on the hosts.
constexpr Duration kEndOfEarlierRun{15'000};

class SshProcesses final : public StartProcesses {
 public:
  SshProcesses(const recipes::Recipe& recipe, const RunFolder& folder, SshBackend& hosts,
               HostPlaces places)
      : recipe_(recipe), folder_(folder), hosts_(hosts), places_(std::move(places)) {}

  std::vector<ProcessSpec> processes(const RunStart& start) override {
    return placed_processes(recipe_, folder_, start, *this);
  }
  Backend& backend() override { return hosts_; }
  void place(ProcessSpec& spec) const override { places_.place(spec); }
  void place_again(const std::vector<ProcessSpec*>& replica) override {
    places_.place_again(replica);
  }

 private:
  const recipes::Recipe& recipe_;
  const RunFolder& folder_;
  SshBackend& hosts_;
  HostPlaces places_;
};

class SshStart final : public RunBackend::Start {
 public:
  // `placement`: where its processes are already.
  SshStart(recipes::Recipe recipe, EarlierLogs earlier, std::unique_ptr<SshBackend> hosts,
           std::optional<Placement> placement)
      : recipe_(std::move(recipe)),
        earlier_(std::move(earlier)),
        hosts_(std::move(hosts)),
        placement_(std::move(placement)) {}

  const recipes::Recipe& recipe() const override { return recipe_; }
  std::string bind() const override { return store_bind(recipe_, hosts_.get()); }
  std::unique_ptr<StartProcesses> enter(const RunFolder& folder) override {
    earlier_.remove();
    HostPlaces places =
        placement_ ? HostPlaces(recipe_, *hosts_, *placement_) : HostPlaces(recipe_, *hosts_);
    return std::make_unique<SshProcesses>(recipe_, folder, *hosts_, std::move(places));
  }

 private:
  const recipes::Recipe recipe_;
  EarlierLogs earlier_;  // before the hosts, which write to the logs until they end
  const std::unique_ptr<SshBackend> hosts_;
  const std::optional<Placement> placement_;
};

// The recipe for the hosts that are left. What that changes is told, so that nobody wonders at it
// later.
recipes::Recipe recipe_for(const recipes::Recipe& recipe, const SshBackend& hosts) {
  for (const size_t host : hosts.lost())
    std::cerr << "note: " << hosts.why_lost(host) << "; the run goes on without it" << std::endl;
  recipes::Recipe result = fit_to_hosts(recipe, hosts.lost());
  const int64_t before = recipe.student().world.dp, now = result.student().world.dp;
  if (now == before) return result;
  std::cerr << "note: roles.student.world.dp is " << now << " instead of " << before
            << " (launch.min_dp), and train.gradient_accumulation_steps "
            << result.train.gradient_accumulation_steps << std::endl;
  return result;
}

// Where the processes are, as the launcher before has written: they live, and are not placed anew.
Placement placement_of(const recipes::Recipe& recipe, const RunStatus& status) {
  const std::vector<recipes::HostOptions>& hosts = recipe.launch.hosts;
  Placement placement;
  placement.processes.resize(hosts.size());
  for (const auto& [name, role] : recipe.roles)
    placement.hosts[name].resize(static_cast<size_t>(role.world.world_size()));
  for (const RunStatus::Process& process : status.processes) {
    const auto host = std::ranges::find(hosts, process.host, &recipes::HostOptions::host);
    if (host == hosts.end())
      throw Error(ErrorCode::kInvalidArgument, "--attach: the recipe has no host " + process.host);
    const auto index = static_cast<size_t>(host - hosts.begin());
    placement.hosts.at(process.role).at(static_cast<size_t>(process.rank)) = index;
    ++placement.processes[index];
  }
  return placement;
}

}  // namespace

bool SshRunBackend::begins_in_folder(RunFolderMode mode) const {
  // A run that --overwrite replaces must stay until the hosts have answered. Otherwise there is
  // nothing to lose, and the hosts' mark and logs are made in the folder that has the recipe.
  const bool replaces =
      mode == RunFolderMode::kOverwrite && fs::exists(run_folder_of(recipe()) / kResolvedRecipe);
  return !replaces;
}

std::set<fs::path> SshRunBackend::files() const { return files_of_hosts(recipe()); }

std::unique_ptr<RunBackend::Start> SshRunBackend::begin(const Beginning& how,
                                                        SignalCatcher& signals) {
  const fs::path folder = run_folder_of(recipe());
  const HostsWanted wanted = how.by_itself ? HostsWanted::kThoseLeft : HostsWanted::kAll;
  EarlierLogs earlier = how.replaces ? EarlierLogs(logs_of_hosts(recipe(), folder)) : EarlierLogs();
  std::unique_ptr<SshBackend> hosts =
      connect_hosts(recipe(), folder, make_run_mark(folder, kEndOfEarlierRun), wanted, signals);
  recipes::Recipe fitted = recipe_for(recipe(), *hosts);
  return std::make_unique<SshStart>(std::move(fitted), std::move(earlier), std::move(hosts),
                                    std::nullopt);
}

std::unique_ptr<RunBackend::Start> SshRunBackend::attach(const RunFolder& folder,
                                                         const RunStatus& status,
                                                         SignalCatcher& signals) {
  const std::string mark = read_run_mark(folder.path()).text;
  std::unique_ptr<SshBackend> hosts =
      connect_hosts(recipe(), folder.path(), mark, HostsWanted::kThoseLeft, signals);
  Placement placement = placement_of(recipe(), status);
  return std::make_unique<SshStart>(recipe(), EarlierLogs(), std::move(hosts),
                                    std::move(placement));
}

}  // namespace retort::launch
