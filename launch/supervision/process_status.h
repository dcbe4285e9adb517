// What a role process tells its launcher while it runs (LauncherLink carries it).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace retort::launch {

struct ProcessStatus {
  // loading | waiting | training | saving | serving | done | stopped | interrupted | diverged |
  // failed
  std::string state;
  int64_t step = 0;
  // One line for people; cut at 1000 bytes, and bytes that are not UTF-8 are replaced. State
  // failed: with the error's code, as Error::what().
  std::string message;
  std::string error;  // state failed: the name of the ErrorCode
  // State failed: another rank of the role met the error, and a vote brought it to this one.
  bool of_another_rank = false;
  // The last word of a process whose end nobody sees: its exit code, or the negative number of the
  // signal that ends it. `state` is then the state before.
  std::optional<int64_t> ended;
  // A signal that it got and that is meant for the run; 0: none.
  int64_t signal = 0;
  // The message is for somebody to look at, and is kept until there is another such one.
  bool warning = false;

  bool operator==(const ProcessStatus&) const = default;
};

std::string encode_status(const ProcessStatus& status);
// nullopt if the text is not a status.
std::optional<ProcessStatus> decode_status(std::string_view text);

}  // namespace retort::launch
