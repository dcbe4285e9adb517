// A run on launch.hosts, each of which is reached by ssh.
#pragma once

#include <filesystem>
#include <memory>
#include <set>

#include "launch/backends/run_backend.h"

namespace retort::launch {

class SshRunBackend final : public RunBackend {
 public:
  using RunBackend::RunBackend;
  // Hosts prove that they see the run's folder by a file in it, and answer before what an earlier
  // run left there is removed. Else they are asked when the folder has the run's recipe, so that
  // --resume begins what they kept waiting.
  bool begins_in_folder(RunFolderMode mode) const override;
  std::set<std::filesystem::path> files() const override;
  // A run that goes on by itself does so on the hosts that are left. Errors of SshBackend and
  // fit_to_hosts.
  std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher& signals) override;
  std::unique_ptr<Start> attach(const RunFolder& folder, const RunStatus& status,
                                SignalCatcher& signals) override;
};

}  // namespace retort::launch
