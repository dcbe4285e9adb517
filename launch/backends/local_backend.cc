#include "launch/backends/local_backend.h"

#include <algorithm>
#include <utility>

#include "base/process/owned_fd.h"

namespace retort::launch {

class LocalBackend::Process final : public RoleProcess {
 public:
  Process(LocalBackend& backend, const SpawnOptions& options) : backend_(backend), child_(options) {
    backend_.processes_.push_back(this);
  }
  ~Process() override { std::erase(backend_.processes_, this); }

  pid_t pid() const override { return child_.pid(); }
  bool running() const override { return child_.running(); }
  bool stopped() const override { return child_.stopped(); }
  void signal(int number) override { child_.signal(number); }
  void signal_group(int number) override { child_.signal_group(number); }
  std::optional<int> try_reap() override { return child_.try_reap(); }
  int pidfd() const { return child_.pidfd(); }

 private:
  LocalBackend& backend_;
  ChildProcess child_;
};

LocalBackend::LocalBackend(std::filesystem::path program, int hold_fd)
    : program_(std::move(program)), hold_fd_(hold_fd) {}

LocalBackend::~LocalBackend() = default;

std::unique_ptr<RoleProcess> LocalBackend::start(const ProcessStart& start) {
  const OwnedFd told = context_input(start.context);
  return std::make_unique<Process>(*this, spawn_options(start, program_, told.get(), hold_fd_));
}

void LocalBackend::poll_for(std::vector<pollfd>& entries) const {
  for (const Process* process : processes_)
    if (process->running()) entries.push_back({process->pidfd(), POLLIN, 0});
}

bool LocalBackend::is_child(pid_t pid) const {
  return std::ranges::any_of(
      processes_, [&](const Process* one) { return one->running() && one->pid() == pid; });
}

SpawnOptions spawn_options(const ProcessStart& start, const std::filesystem::path& program,
                           int input_fd, int hold_fd) {
  return {.program = program,
          .arguments = start.arguments,
          .environment = child_environment(start.context.threads, start.env),
          .log = start.log,
          .input_fd = input_fd,
          .hold_fd = hold_fd};
}

}  // namespace retort::launch
