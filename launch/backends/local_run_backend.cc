#include "launch/backends/local_run_backend.h"

#include <filesystem>
#include <string>
#include <vector>

#include "launch/backends/local_backend.h"

namespace retort::launch {
namespace {

class LocalProcesses final : public StartProcesses {
 public:
  LocalProcesses(const recipes::Recipe& recipe, const RunFolder& folder)
      : recipe_(recipe),
        folder_(folder),
        children_(std::filesystem::read_symlink("/proc/self/exe"), folder.lock_fd()) {}

  std::vector<ProcessSpec> processes(const RunStart& start) override {
    return placed_processes(recipe_, folder_, start, *this);
  }
  Backend& backend() override { return children_; }

 private:
  const recipes::Recipe& recipe_;
  const RunFolder& folder_;
  LocalBackend children_;
};

class LocalStart final : public RunBackend::Start {
 public:
  explicit LocalStart(const recipes::Recipe& recipe) : recipe_(recipe) {}

  const recipes::Recipe& recipe() const override { return recipe_; }
  std::string bind() const override {
    return recipe_.launch.rendezvous.address.value_or(recipe_.rpc.bind);
  }
  std::unique_ptr<StartProcesses> enter(const RunFolder& folder) override {
    return std::make_unique<LocalProcesses>(recipe_, folder);
  }

 private:
  const recipes::Recipe& recipe_;
};

}  // namespace

std::unique_ptr<RunBackend::Start> LocalRunBackend::begin(const Beginning& /*how*/,
                                                          SignalCatcher&) {
  return std::make_unique<LocalStart>(recipe());
}

std::unique_ptr<RunBackend::Start> LocalRunBackend::attach(const RunFolder&, const RunStatus&,
                                                           SignalCatcher&) {
  return std::make_unique<LocalStart>(recipe());
}

}  // namespace retort::launch
