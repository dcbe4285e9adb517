// Signals as something that can be polled and asked for, in any thread of the process.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <csignal>

namespace retort::launch {

// While it lives, the given signals do not end the process: they are queued here (up to a pipe's worth). One at a time in a process.
// Any thread may ask; next() is for one thread.
class SignalCatcher {
 public:
  explicit SignalCatcher(std::initializer_list<int> signals);
  ~SignalCatcher();  // restores what was before
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

  // Readable while a signal waits to be taken.
  int fd() const { return pipe_[0]; }
  // The oldest signal not yet taken; never waits.
  std::optional<int> next();
  // Whether any came at all, taken or not.
  bool any() const;

 private:
  int pipe_[2] = {-1, -1};
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace retort::launch
