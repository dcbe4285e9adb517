// The child's end of the pipe that says whether the launcher lives.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/units.h"

namespace retort::launch {

// A thread waits for the end of a pipe whose only write end is the launcher's. Then:
//
//   a process that drives:   on_lost                      at once
//                            killed with its group        grace later
//   a process that serves:   goes on                      while `is_needed`, at most `need_limit`
//                            on_lost                      after that
//                            killed with its group        grace later
//
// so that the driving ones can save while somebody still answers them. Nothing is killed once this
// object is destroyed; the destructor stops the thread.
class LifePipe {
 public:
  struct Options {
    int fd = -1;                    // the read end, which this object closes
    std::function<void()> on_lost;  // called once; sets a stop flag; must not block
    // Of a process that serves: whether a driving one still needs it. Asked ten times a second
    // while the launcher is gone; must not block.
    std::function<bool()> is_needed = {};
    Duration need_limit{0};
    Duration grace{10'000};  // for a process to end once it was told to
  };
  explicit LifePipe(Options options);
  ~LifePipe();
  LifePipe(const LifePipe&) = delete;
  LifePipe& operator=(const LifePipe&) = delete;

  // Another grace, for a launcher that is lost from now on: of a process that has something to
  // save. Any thread.
  void set_grace(Duration grace) { grace_ms_ = grace.count(); }

 private:
  void watch();
  // False when the destructor ends the waiting.
  bool wait_for_loss() const;
  bool wait_until_unneeded() const;

  Options options_;
  std::atomic<int64_t> grace_ms_;
  int wake_fd_;
  std::thread thread_;
};

}  // namespace retort::launch
