// An environment that is a program of the user's: one JSON line for each call, one for each answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/process/pipe.h"
#include "environments/detail/episode_table.h"
#include "environments/detail/program.h"
#include "environments/options.h"
#include "roles/environment/environment.h"

namespace retort::environments {

// The protocol is in docs/environments.md. A thread of its own writes, reads and completes futures.
//
// A program that ends, closes a pipe, hangs (says nothing for a whole `timeout` of a call) or
// writes what answers nothing is killed with its process group; its open episodes fail with
// kPeerLost, and the next one that is opened starts it again. One that is gone three times in a
// row before it has opened an episode is not started any more.
//
// Threads: any. The destructor stops it, and waits until the program has ended, two seconds and a
//   kill.
class CommandEnvironment final : public roles::Environment {
 public:
  // Starts the program. kInvalidArgument if it cannot be started, kResourceExhausted if there is
  // no room for it.
  CommandEnvironment(std::string name, const EnvironmentOptions& options, Duration timeout);
  ~CommandEnvironment() override;

  roles::EnvironmentInfo info() override;
  Future<roles::OpenedEpisode> open(roles::OpenEpisode request) override;
  Future<roles::EpisodeAnswer> step(roles::EpisodeTurn turn) override;
  Future<roles::ClosedEpisode> close(roles::CloseEpisode request) override;
  void stop() override;

 private:
  using MakeLine = std::function<std::string(uint64_t number)>;
  template <class T>
  Future<T> ask(detail::Verb verb, uint64_t caller, MakeLine make_line);
  Future<detail::Reply> add_call(detail::Verb verb, uint64_t caller, const MakeLine& make_line);

  void work();
  bool start_again();
  void exchange();
  void take_line(const detail::Program::Line& line);
  void take_hello(const detail::Program::Line& line);
  void expire();
  void lose(const Error& error);
  void wake();

  const std::string name_;
  const EnvironmentOptions options_;
  const Duration timeout_;

  // Of the thread alone, once it runs.
  std::unique_ptr<detail::Program> program_;  // null: it is gone
  Deadline start_deadline_;                   // of its first line
  Deadline::Clock::time_point last_heard_{};  // from the program

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  detail::EpisodeTable table_;
  std::string outbox_;     // lines that the program has not got, with their ends
  bool is_ready_ = false;  // the program has said its first line
  std::optional<roles::EnvironmentInfo> info_;
  std::optional<Error> loss_;  // how the program ended the last time
  int64_t vain_starts_ = 0;    // in a row, in which no episode was opened
  Deadline::Clock::time_point next_start_{};
  bool is_stopped_ = false;
  bool is_woken_ = false;  // a byte lies in the pipe
  Pipe wake_ = make_pipe();

  std::thread thread_;
};

}  // namespace retort::environments
