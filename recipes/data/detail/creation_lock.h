// One of several processes makes a file that all of them want.
#pragma once

#include <filesystem>
#include <functional>

namespace retort::data::detail {

// Held by the one thread, of all processes, that makes the file, while others wait for that instead
// of making theirs. Where the file system has no locks, or the folder cannot be written, each of
// them makes it, and the last one's stays. The lock ends with its process.
class CreationLock {
 public:
  // A lock on the folder in which the file is made. Waits until it has the lock.
  explicit CreationLock(const std::filesystem::path& folder);
  // A lock on a file of its own, which it makes, and which goes with its holder: who waits for it
  // then finds what the holder has made. Waits until it has the lock or `stop`, which is asked
  // several times a second, says so.
  CreationLock(const std::filesystem::path& file, const std::function<bool()>& stop);
  ~CreationLock();
  CreationLock(const CreationLock&) = delete;
  CreationLock& operator=(const CreationLock&) = delete;

  bool is_stopped() const { return is_stopped_; }

 private:
  bool wait(const std::function<bool()>& stop);

  const int fd_;                // < 0: it could not be opened, and nothing is locked
  std::filesystem::path made_;  // to be removed; empty: nothing
  bool is_stopped_ = false;
};

}  // namespace retort::data::detail
