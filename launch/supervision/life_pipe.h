// The child's end of the pipe that says whether the launcher lives.
#pragma once

#include <functional>
#include <thread>

#include "base/units.h"

namespace retort::launch {

// Owns `fd`, the read end of a pipe whose only write end is the launcher's. A thread waits for its
// end: then it calls `on_lost` once (set a stop flag; must not block) and, unless this object is
// destroyed within `grace`, ends the process with _exit(1) whatever its other threads do. The
// destructor stops the thread.
class LifePipe {
 public:
  LifePipe(int fd, std::function<void()> on_lost, Duration grace = Duration(10'000));
  ~LifePipe();
  LifePipe(const LifePipe&) = delete;
  LifePipe& operator=(const LifePipe&) = delete;

 private:
  void watch();

  int fd_, wake_fd_;
  std::function<void()> on_lost_;
  Duration grace_;
  std::thread thread_;
};

}  // namespace retort::launch
