// Writing to somebody who may not read: a pager, a terminal that is held by Ctrl-S, a stalled ssh.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "base/deadline.h"

namespace retort::launch {

// Writes text to a descriptor from a thread of its own, in the order of the calls. Nobody else
// waits for a reader. (Not by O_NONBLOCK: that belongs to the open file, which a terminal's other
// processes share.)
//
// Errors: once a write has failed nobody looks any more; all that follows counts as written.
// Memory: `capacity` bytes, and what was given to write_always.
// Threads: one caller; that of drain() may be another.
class BackgroundWriter {
 public:
  // Duplicates `fd`. kResourceExhausted when there is no descriptor left.
  BackgroundWriter(int fd, size_t capacity);
  ~BackgroundWriter();  // close()
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Takes the whole text and returns true; or none of it, when it and what waits are more than
  // `capacity` bytes. If nothing waits any text is taken.
  bool write(const std::string& text);
  // Takes the text whatever waits.
  void write_always(const std::string& text);
  // Whether all that was taken has been written.
  bool idle() const;
  // Waits until then; false at the deadline.
  bool drain(Deadline deadline) const;
  // Drops what has not been written, all that follows, and the duplicate. Does not wait for a
  // write that hangs: the thread ends by itself when that returns.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace retort::launch
