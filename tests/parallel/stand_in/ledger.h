// What one process knows of all its groups on the stand-in device: in which order it has started
// their operations, which of them nobody has waited for, and what went wrong first.
//
// Threads: any. The order is that of the calls of start(), which one thread makes at a time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "tests/parallel/stand_in/start.h"

namespace retort::test {

class Ledger {
 public:
  // `key`: the same for all members of the group, and no other group's.
  void enter(const std::string& key, const StandInMember& member);
  void leave(const std::string& key);

  // Gives the operation its number, and what had been started before it.
  void start(const std::string& key, Start& operation);
  void waited(const std::string& key, uint64_t number);
  // The first operation of the group that nobody has waited for, as an error.
  std::optional<std::string> unwaited(const std::string& key) const;
  // The error of this one whose work is gone, so that nobody can wait for it any more; nothing
  // where the group has left.
  std::optional<std::string> dropped(const std::string& key, uint64_t number) const;

  uint64_t num_started(const std::string& key) const;   // 0 where the group has left
  int64_t num_started() const;                          // in all groups that there ever were
  std::map<std::string, StandInMember> groups() const;  // by their keys

  // Keeps the first failure and returns it: after that no group does anything more.
  std::string fail(const std::string& text);
  std::optional<std::string> failure() const;

 private:
  struct Group {
    StandInMember member;
    uint64_t num_started = 0;
    std::map<uint64_t, std::string> unwaited;  // number -> operation_text()
  };
  static std::string unwaited_text(const Group& group, const std::string& operation);

  mutable std::mutex mutex_;
  std::map<std::string, Group> groups_;
  int64_t num_started_ = 0;
  std::optional<std::string> failure_;
};

}  // namespace retort::test
