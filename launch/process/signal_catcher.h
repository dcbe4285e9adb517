// Signals as something that can be polled and asked for, in any thread of the process.
#pragma once

#include <initializer_list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <csignal>

namespace retort::launch {

// While it lives, the given signals do not end the process: they are queued here (up to a pipe's
// worth). One at a time in a process. Any thread may ask; next() is for one thread. Handlers run on
// a thread of its own: the calling thread, and those it starts from now on, block the signals. (A
// handler's frame on the stack of a thread inside a oneDNN matrix product overwrites that product's
// workspace: measured with LibTorch 2.11.) So make it before any other thread, and send signals to
// the process, not to a thread.
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
  void serve(sigset_t signals);

  int pipe_[2] = {-1, -1}, stop_[2] = {-1, -1};
  std::vector<std::pair<int, struct sigaction>> before_;
  sigset_t mask_before_;
  std::thread thread_;
};

// Signals of these numbers wait, in this thread and in those it starts from now on, for a
// SignalCatcher to take them or for release_signals(). What main() does first: one that comes
// before a catcher is there must neither end the process nor, in the first process of a container,
// be lost.
void hold_signals(std::initializer_list<int> signals);
void release_signals(std::initializer_list<int> signals);
// The first of them that waits and is not ignored (nohup); 0: none does.
int held_signal(std::initializer_list<int> signals);
// The signals by which people and systems ask a program to end.
inline constexpr std::initializer_list<int> kEndSignals{SIGINT, SIGTERM, SIGHUP};

}  // namespace retort::launch
