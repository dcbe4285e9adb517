// The steps of a job of Slurm that run the roles of a run: one srun each, as children of this
// process. A step is signalled by scancel, never by a signal to its srun, which would kill the
// tasks at once or leave them behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "launch/supervision/backend.h"

namespace retort::launch {

struct SlurmStepStart {
  std::string name;  // by which squeue finds it; no other step of the job has it
  std::string role;
  std::vector<std::string> arguments;  // of srun
  std::filesystem::path log;           // what srun itself says
  // Of the tasks, beside the job's own; srun passes them on under other names, which `retort join`
  // takes (launch/join/carried_variables.h), and does not act by them itself.
  std::map<std::string, std::string> variables = {};
};

// As a backend it starts nothing: the tasks join the run by themselves (launch/join).
//
// Errors: of start(), as ChildProcess.
// Waits: all but the destructor never wait.
class SlurmSteps final : public Backend {
 public:
  explicit SlurmSteps(std::string job);
  // Waits for steps that end; those that do not are killed, and left to Slurm where that does not
  // help. Within half a minute.
  ~SlurmSteps() override;

  void start_step(const SlurmStepStart& start);
  // kUnavailable, with what srun said, when a step ended although its tasks are needed.
  void check();
  // SIGTERM or SIGKILL to all tasks of a role, again until there is a step to send it to. Others
  // are nothing: a task that a stop signal holds is not told to go on.
  void signal(const std::string& role, int number);
  // How a task ended, as waitpid gives it, where it did not say so itself: from what srun says of
  // it, or from how its step ended, some time after that. nullopt also for a srun that was itself
  // killed, whose tasks may live.
  std::optional<int> ended(const std::string& role, int64_t rank);

  std::unique_ptr<RoleProcess> start(const ProcessStart& start) override;
  void poll_for(std::vector<pollfd>& entries) const override;
  void work() override;
  bool is_child(pid_t pid) const override;

 private:
  struct Step;
  Step& step_of(const std::string& role);
  void try_to_send(Step& step);
  void send(Step& step);
  void take_answer(Step& step);
  bool all_ended() const;
  void work_until_ended(Deadline deadline);

  const std::string job_;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace retort::launch
