// A process of a run as the supervisor sees it: one that it started as its child, or one that
// somebody else started and that is known by its connection.
#pragma once

#include <sys/types.h>

#include <optional>

namespace retort::launch {

class WatchedProcess {
 public:
  virtual ~WatchedProcess() = default;

  virtual pid_t pid() const = 0;
  // Whether it is a child of this process: only then is there anything that can be signalled.
  virtual bool is_child() const = 0;
  virtual int pidfd() const = 0;  // readable once the process has ended; -1: its connection says so
  virtual bool running() const = 0;
  virtual bool stopped() const = 0;
  virtual void signal(int number) const = 0;
  virtual void signal_group(int number) const = 0;
  // How it ended, as waitpid gives it; nullopt while it runs. Never waits.
  virtual std::optional<int> try_reap() = 0;
};

// One that joined by itself. Nothing can be sent to it but what goes over its connection.
class JoinedProcess final : public WatchedProcess {
 public:
  explicit JoinedProcess(pid_t pid) : pid_(pid) {}

  // The exit code, or the negative number of a signal.
  void end(int code) { status_ = code >= 0 ? code << 8 : -code; }

  pid_t pid() const override { return pid_; }
  bool is_child() const override { return false; }
  int pidfd() const override { return -1; }
  bool running() const override { return !status_; }
  bool stopped() const override { return false; }
  void signal(int) const override {}
  void signal_group(int) const override {}
  std::optional<int> try_reap() override { return status_; }

 private:
  const pid_t pid_;
  std::optional<int> status_;
};

}  // namespace retort::launch
