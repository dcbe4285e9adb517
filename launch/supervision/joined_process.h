// A process of a run that somebody else started. It is known by its supervision connection, over
// which it says how it ends; what else can be done depends on who started it.
#pragma once

#include <csignal>
#include <string>
#include <utility>

#include "launch/supervision/backend.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

class JoinedProcess final : public RoleProcess {
 public:
  JoinedProcess(JoinedSpec spec, std::string host)
      : spec_(std::move(spec)), host_(std::move(host)) {}

  // It says how it ends: with an exit code, or by the negative number of a signal.
  void end(int code) {
    if (!status_) status_ = code >= 0 ? code << 8 : -code;
  }
  // Nothing comes from it any more.
  void lose() {
    if (status_) return;
    lost_ = "nothing came from it any more";
    if (!host_.empty()) lost_ += "; it was on " + host_;
    status_ = SIGKILL;
  }

  pid_t pid() const override { return spec_.pid; }
  bool running() const override { return !status_; }
  bool stopped() const override { return false; }
  void signal(int number) override {
    if (spec_.signal && !status_) spec_.signal(number);
  }
  void signal_group(int number) override { signal(number); }
  std::optional<int> try_reap() override {
    if (!status_ && spec_.ended) status_ = spec_.ended();
    return status_;
  }
  std::string lost() const override { return lost_; }

 private:
  const JoinedSpec spec_;
  const std::string host_;
  std::string lost_;
  std::optional<int> status_;
};

}  // namespace retort::launch
