// Processes of the launcher's own host: its children.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "launch/process/child_process.h"
#include "launch/supervision/backend.h"

namespace retort::launch {

class LocalBackend final : public Backend {
 public:
  // `hold_fd` stays open in every process until it ends (the run folder's lock); -1: none.
  LocalBackend(std::filesystem::path program, int hold_fd);
  ~LocalBackend() override;

  std::unique_ptr<RoleProcess> start(const ProcessStart& start) override;
  void poll_for(std::vector<pollfd>& entries) const override;
  void work() override {}
  bool is_child(pid_t pid) const override;

 private:
  class Process;
  std::filesystem::path program_;
  int hold_fd_;
  std::vector<Process*> processes_;  // each leaves when it is destroyed
};

// How the process is spawned on the host that starts it, its output in `start.log`.
SpawnOptions spawn_options(const ProcessStart& start, const std::filesystem::path& program,
                           int input_fd, int hold_fd);

}  // namespace retort::launch
