// Turns at a file that several hosts write. Each host of a network file system has a page cache of
// its own: one that changes part of a page may write the whole page back, with the bytes that it
// had read there before another host wrote them.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"

namespace retort {

// Names the page cache through which this process sees `folder`: processes for which it is the same
// text see each other's bytes at once. It is the host's name, its kernel and the mounted file
// system; for those that keep the caches of all hosts the same (Lustre, GPFS, CephFS) the file
// system alone.
// kUnavailable naming the folder if that cannot be looked at.
std::string page_cache_of(const std::filesystem::path& folder);
// What `boot_id` says of the kernel that runs; where that cannot be read, another text in each
// process.
std::string kernel_of(const std::filesystem::path& boot_id);

// The right to write `file` until it is given back: as long as `<file>.turn` is there, which one
// process at a time can create on every file system, with or without locks.
//
// No byte is lost if each writer opens the file within its turn, and syncs and closes it before it
// gives that back: a file that is opened shows what was closed before, on NFS of every version as
// on local disks. (Locks are not asked for: NFS may be mounted with locks of one host.)
class WriteTurn {
 public:
  // None: another has it. kResourceExhausted or kUnavailable naming the turn's file.
  static std::optional<WriteTurn> try_take(const std::filesystem::path& file);
  ~WriteTurn();  // gives it back
  WriteTurn(WriteTurn&&) noexcept;
  WriteTurn& operator=(WriteTurn&& other) noexcept {
    std::swap(path_, other.path_);  // `other` gives back what this one had
    return *this;
  }

  // A sign of life, for TurnWatch.
  void beat() const;

 private:
  explicit WriteTurn(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;  // empty: moved from
};

// Watches the turns of others, so that nobody waits for a writer that is gone.
// Threads: one.
class TurnWatch {
 public:
  explicit TurnWatch(Duration patience) : patience_(patience) {}
  // `file` was not to be had. kUnavailable naming its writer when that has given no sign of life
  // for `patience`.
  void see(const std::filesystem::path& file);

 private:
  struct Seen {
    std::string sign;  // who has the turn, and its last sign of life
    std::chrono::steady_clock::time_point since;
  };
  const Duration patience_;
  std::map<std::filesystem::path, Seen> seen_;
};

}  // namespace retort
