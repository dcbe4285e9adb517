// A run inside an allocation of Slurm, or one that is to be queued for it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "launch/backends/run_backend.h"
#include "launch/slurm/job.h"

namespace retort::launch {

class SlurmRunBackend final : public RunBackend {
 public:
  using RunBackend::RunBackend;
  // Errors of check_stop_timeout and ask_slurm.
  void check_submit() const override;
  // Finds the job that this process is part of. Errors of check_slurm_job.
  void check() override;
  rpc::RendezvousAccess new_access() override;
  bool can_be_attached() const override { return false; }
  std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher& signals) override;
  // A job whose node is lost does not go on where it is, but is queued again.
  StartEnd after_end(StartEnd end) const override;

 private:
  std::optional<SlurmJob> job_;
  // These belong to the start that new_access() was last called for.
  std::string bind_;
  rpc::RendezvousAccess access_;
};

}  // namespace retort::launch
