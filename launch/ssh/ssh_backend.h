// Processes on the hosts of `launch.hosts`, each of which is reached by one ssh connection.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launch/placement/placement.h"
#include "launch/process/signal_catcher.h"
#include "launch/ssh/host_link.h"
#include "launch/supervision/backend.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// Which of the hosts must be there at the start.
enum class HostsWanted {
  kAll,
  kThoseLeft,  // of a run that goes on by itself: one that cannot be reached is lost; at least one
};

// What the links to `launch.hosts` of a recipe are made with, in their order. The hosts' words go
// into files of `logs`.
std::vector<HostLinkOptions> links_to_hosts(const recipes::Recipe& recipe,
                                            const std::filesystem::path& run_folder,
                                            const std::string& mark,
                                            const std::filesystem::path& logs);

// Use: make it before the run's store, whose address the hosts tell; then a Supervisor starts
//   processes with it, by the names of the hosts.
// Errors: of the constructor, kMismatch for a host with another program, kUnavailable for one that
//   cannot be reached or does not see the folder, kCancelled when a signal comes meanwhile.
class SshBackend final : public Backend {
 public:
  SshBackend(std::vector<HostLinkOptions> hosts, HostsWanted wanted, const SignalCatcher& signals);
  ~SshBackend() override;  // ends what is left on the hosts

  // By index of launch.hosts; knows(): not of one that was lost before it said anything.
  bool knows(size_t host) const { return links_.at(host)->facts().has_value(); }
  const HostFacts& facts(size_t host) const { return links_.at(host)->facts().value(); }
  LostHosts lost() const;
  // The error of a host that is lost.
  std::string why_lost(size_t host) const { return links_.at(host)->lost()->message(); }
  // This host's address, as the others see it.
  std::string launcher_address() const;

  std::unique_ptr<RoleProcess> start(const ProcessStart& start) override;
  void poll_for(std::vector<pollfd>& entries) const override;
  void work() override;
  bool is_child(pid_t pid) const override;

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<HostLink>> links_;
  EndOfLinks end_;
};

}  // namespace retort::launch
