// What the ranks of a group on the stand-in device tell one another when they start an operation,
// and what two of them must agree on.
//
// Text: errors name the group, the number of the operation in it, and the ranks of both sides.
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace retort::test {

// A group as one of its members sees it.
struct StandInMember {
  std::string name;        // "student.dp"
  std::vector<int> ranks;  // of the role, in the order of the group
  int position = 0;        // of this rank in `ranks`

  std::string rank_at(int other) const;  // "rank 3"
  std::string rank() const { return rank_at(position); }
  std::string others() const;  // "rank 0, rank 2"
};

struct Start {
  uint64_t number = 0;    // of the operation in its group, from 1
  std::string operation;  // "all_reduce sum", "broadcast from 1"
  int64_t bytes = 0;
  std::string dtype;  // "Byte" for what only moves
  // How many operations this process had started before in each of its groups, by their keys.
  std::map<std::string, uint64_t> before;
  std::string data;  // what the rank brings

  std::string what() const;  // "all_reduce sum of 64 bytes of Float"
  std::string to_text() const;
};
Start start_from_text(const std::string& text);

// "operation 3 of student.dp (all_reduce sum of 64 bytes of Float)".
std::string operation_text(const StandInMember& member, const Start& start);

// Why `theirs`, of the member at `position`, is not what `mine` is: another operation, another
// amount, another dtype; or another order of starts, where one of `groups`, by their keys, was used
// before by one of the two alone. Nothing if they agree.
std::optional<std::string> difference(const StandInMember& member, const Start& mine, int position,
                                      const Start& theirs,
                                      const std::map<std::string, StandInMember>& groups);

}  // namespace retort::test
