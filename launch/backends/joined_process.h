// A process of a run that somebody else started. It is known by its supervision connection alone,
// over which it says how it ends, and nothing can be sent to it but what goes over that.
#pragma once

#include <csignal>

#include "launch/backends/backend.h"

namespace retort::launch {

class JoinedProcess final : public RoleProcess {
 public:
  explicit JoinedProcess(pid_t pid) : pid_(pid) {}

  // It says how it ends: with an exit code, or by the negative number of a signal.
  void end(int code) {
    if (!status_) status_ = code >= 0 ? code << 8 : -code;
  }
  // Nothing comes from it any more.
  void lose() {
    if (status_) return;
    lost_ = "nothing came from it any more";
    status_ = SIGKILL;
  }

  pid_t pid() const override { return pid_; }
  bool running() const override { return !status_; }
  bool stopped() const override { return false; }
  void signal(int) override {}
  void signal_group(int) override {}
  std::optional<int> try_reap() override { return status_; }
  std::string lost() const override { return lost_; }

 private:
  const pid_t pid_;
  std::string lost_;
  std::optional<int> status_;
};

}  // namespace retort::launch
