// One start of a run inside an allocation of Slurm: a step for each role, whose tasks join the run,
// and this process as its launcher.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launch/backends/start_processes.h"
#include "launch/join/keeper.h"
#include "launch/process/signal_catcher.h"
#include "launch/slurm/job.h"
#include "launch/slurm/steps.h"
#include "recipes/document/recipe.h"
#include "rpc/launcher_port/rendezvous_access.h"

namespace retort::launch {

// A file that only its owner reads, and that is gone when this object is.
class SecretFile {
 public:
  SecretFile(std::filesystem::path path, const std::string& secret);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

// Where the processes of a job find this launcher's store, unless the recipe says where: the
// address of this host towards the first node of the job.
std::string slurm_store_bind(const recipes::Recipe& recipe, const SlurmJob& job);

// Use: make it when the run's store serves; processes() starts the steps, once.
// Shared folder: the tasks read the secret from the run's folder, unless the recipe says where it
//   is; a node that does not see that folder cannot join.
class SlurmRun final : public StartProcesses {
 public:
  SlurmRun(const recipes::Recipe& recipe, const RunFolder& folder, const SlurmJob& job,
           const rpc::RendezvousAccess& access, const SignalCatcher& signals);

  // Starts the steps and waits until all of their tasks have joined, within launch.load_timeout.
  // kUnavailable when a step ends before that, with what srun said.
  std::vector<ProcessSpec> processes(const RunStart& start) override;
  Backend& backend() override { return steps_; }

 private:
  void start_steps(const RunStart& start);

  const recipes::Recipe& recipe_;
  const RunFolder& folder_;
  const SlurmJob job_;
  const rpc::RendezvousAccess access_;
  std::optional<SecretFile> secret_;
  Keeper keeper_;
  SlurmSteps steps_;
};

// kInvalidArgument, naming two processes and their nodes, where tp ranks that compute together are
// not on one node.
void check_nodes(const recipes::Recipe& recipe, const std::vector<Member>& members);

// Before anything starts. kInvalidArgument outside of an allocation, for what `launch.slurm` asks
// of a job that is there already (unless that was submitted for this recipe), and for a
// stop_timeout that Slurm cuts short.
SlurmJob check_slurm_job(const recipes::Recipe& recipe, bool was_submitted);

}  // namespace retort::launch
