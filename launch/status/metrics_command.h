// launch.metrics_command: a program of the user's that reads a run's metrics while it goes on.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

// Writes every line that metrics.jsonl gets from now on to the program's stdin, as it stands there.
// The file is the queue: a program that reads slowly is behind, loses nothing and holds up nobody.
// What it prints goes to a file.
//
// Its end before the run's, and a stdin that it closes, are told once; it is not started again, and
// the run goes on without it.
// Threads: one, the supervisor's. One of its own reads the file and writes.
class MetricsCommand final : public SupervisorObserver {
 public:
  struct Options {
    std::vector<std::string> argv;
    std::filesystem::path metrics;  // followed for new lines
    std::filesystem::path output;   // what the program prints is appended to it
    // one line about its end, on the supervisor's thread
    std::function<void(const std::string& message)> tell;
  };
  // kInvalidArgument if the program cannot be started.
  explicit MetricsCommand(Options options);
  ~MetricsCommand() override;  // kills it, unless finish() was called
  MetricsCommand(const MetricsCommand&) = delete;

  void on_tick() override;
  // Whether this is the program or its guard, which nobody else may reap or end.
  bool is_program(pid_t pid) const { return pid == pid_ || pid == guard_pid_; }
  // The run has ended: passes on what is left, closes the program's stdin and waits until it has
  // ended, for `timeout`; then it is killed, which is told.
  void finish(Duration timeout);

 private:
  struct Work;
  void follow(Work& work);
  void end(const std::string& how);

  Options options_;
  std::unique_ptr<Work> work_;
  std::atomic<pid_t> pid_{-1};
  std::atomic<pid_t> guard_pid_{-1};
  std::atomic<bool> run_ended_{false};
  std::atomic<int64_t> end_by_{0};  // steady clock, milliseconds; once run_ended_
  std::mutex mutex_;                // of message_
  std::string message_;             // not told yet
  std::thread thread_;
};

}  // namespace retort::launch
