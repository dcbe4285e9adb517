// Runs of small children under a Supervisor.
#pragma once

#include <signal.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "base/file.h"
#include "launch/backends/local_backend.h"
#include "launch/supervision/supervisor.h"
#include "rpc/rendezvous/rendezvous.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/process_state.h"

namespace retort::test {

// Calls a function when a role reports a state, when one ends, or when the supervisor says
// something.
class Script : public launch::SupervisorObserver {
 public:
  std::function<void(const std::string& role, const std::string& state)> status = [](auto&, auto&) {
  };
  std::function<void(const std::string& role, const std::string& what)> end = [](auto&, auto&) {};
  std::function<void(const std::string& message)> phase = [](auto&) {};
  std::function<void(const std::string& process, pid_t)> started = [](auto&, pid_t) {};
  std::vector<pid_t> pids;

  void on_start(const launch::ProcessSpec& spec, pid_t pid) override {
    pids.push_back(pid);
    started(spec.name(), pid);
  }
  void on_status(const launch::ProcessSpec& spec, const launch::ProcessStatus& s) override {
    status(spec.context.role, s.state);
  }
  void on_exit(const launch::ProcessSpec& spec, const std::string& what) override {
    end(spec.context.role, what);
  }
  void on_phase(const std::string& message) override { phase(message); }
};

class SupervisorTest : public FolderTest {
 protected:
  static constexpr const char* kSecret = "do-not-show-this";

  SupervisorTest() {
    listen({});
    start_from(std::filesystem::read_symlink("/proc/self/exe"));
    options_.log_folder = folder_ / "logs";
    // Generous where a test waits for something to happen, so that only what it is about can end
    // it.
    options_.stop_timeout = options_.serving_timeout = options_.failure_grace =
        options_.answer_timeout = Duration(60'000);
  }

  // The processes are this program, and hold that descriptor.
  void start_from(const std::filesystem::path& program, int hold_fd = -1) {
    local_ = std::make_unique<launch::LocalBackend>(program, hold_fd);
    options_.backend = local_.get();
  }

  // The launcher's port, with these times for the processes that are added from now on.
  void listen(rpc::SupervisionTimes times) {
    // Signals are for the catcher's thread, which run() starts.
    sigset_t caught, before;
    ::sigemptyset(&caught);
    for (const int number : {SIGINT, SIGTERM, SIGHUP})
      ::sigaddset(&caught, number);
    ::pthread_sigmask(SIG_BLOCK, &caught, &before);
    times_ = times;
    port_ = std::make_unique<rpc::RendezvousServer>(
        rpc::RendezvousAccess{.name = {}, .run = "run", .secret = kSecret}, "auto", "0", times);
    options_.supervision = &port_->supervision();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void add(const std::string& role, int64_t rank, const std::string& mode,
           const std::string& more = "") {
    launch::ProcessSpec spec;
    spec.context = {.run = "run",
                    .role = role,
                    .rank = rank,
                    .store_host = port_->host(),
                    .store_port = port_->port(),
                    .secret = kSecret,
                    .heartbeat_interval = times_.interval,
                    .peer_timeout = times_.limit,
                    .threads = 2};
    spec.driving = role == "student";
    spec.arguments = {"child", mode, folder_.string(), more};
    options_.processes.push_back(spec);
  }

  // Does something once that many reports have come: of every process, so that each hears what the
  // test or the launcher asks of it, and does not end of it while it loads.
  void when_ready(int count, std::function<void()> action) {
    script_.status = [this, count, action](const std::string&, const std::string&) {
      if (++ready_ == count) action();
    };
  }

  launch::SupervisorResult run() {
    launch::SignalCatcher signals({SIGINT, SIGTERM, SIGHUP});
    launch::Supervisor supervisor(options_, &script_);
    const auto result = supervisor.run(signals);
    for (pid_t pid : script_.pids)
      EXPECT_EQ(::kill(pid, 0), -1) << "process " << pid << " is still there";
    return result;
  }

  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  rpc::SupervisionTimes times_;
  std::unique_ptr<rpc::RendezvousServer> port_;
  std::unique_ptr<launch::LocalBackend> local_;
  launch::SupervisorOptions options_;
  Script script_;
  int ready_ = 0;  // reports so far, with when_ready()
};

}  // namespace retort::test
