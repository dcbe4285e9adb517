#include "launch/slurm/run_backend.h"

#include "launch/backends/run_store.h"
#include "launch/join/join_protocol.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/slurm/command.h"
#include "launch/slurm/run.h"
#include "launch/slurm/texts.h"
#include "rpc/listen_address.h"

namespace retort::launch {
namespace {

class SlurmStart final : public RunBackend::Start {
 public:
  SlurmStart(const recipes::Recipe& recipe, const SlurmJob& job, std::string bind,
             const rpc::RendezvousAccess& access, const SignalCatcher& signals)
      : recipe_(recipe), job_(job), bind_(std::move(bind)), access_(access), signals_(signals) {}

  const recipes::Recipe& recipe() const override { return recipe_; }
  std::string bind() const override { return bind_; }
  std::unique_ptr<StartProcesses> enter(const RunFolder& folder) override {
    return std::make_unique<SlurmRun>(recipe_, folder, job_, access_, signals_);
  }

 private:
  const recipes::Recipe& recipe_;
  const SlurmJob job_;
  const std::string bind_;
  const rpc::RendezvousAccess access_;
  const SignalCatcher& signals_;
};

}  // namespace

void SlurmRunBackend::check_submit() const {
  check_stop_timeout(recipe().launch.stop_timeout,
                     kill_wait_of(ask_slurm("scontrol", {"show", "config"})));
}

void SlurmRunBackend::check() { job_ = check_slurm_job(recipe(), options().submitted); }

rpc::RendezvousAccess SlurmRunBackend::new_access() {
  bind_ = slurm_store_bind(recipe(), job_.value());
  access_ = {.name = {},
             .run = new_run_id(run_folder_of(recipe())),
             .secret = run_secret(recipe()),
             .encryption = rpc::settled_encryption(recipe().rpc.encryption, bind_),
             .meeting = kMeetingRun};
  return access_;
}

std::unique_ptr<RunBackend::Start> SlurmRunBackend::begin(const Beginning& /*how*/,
                                                          SignalCatcher& signals) {
  return std::make_unique<SlurmStart>(recipe(), job_.value(), bind_, access_, signals);
}

StartEnd SlurmRunBackend::after_end(StartEnd end) const {
  // A run that lost a process goes on in a job that is queued again. One that makes no progress in
  // a job which was queued again already would be queued for ever, and ends.
  const bool may_queue = options().submitted && recipe().launch.slurm.requeue;
  const bool queues = may_queue && end.lost_process && (end.progressed || !job_->was_requeued);
  return queues ? StartEnd{.exit_code = kExitQueueAgain} : end;
}

}  // namespace retort::launch
