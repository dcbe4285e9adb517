// What a role process tells its launcher while it runs: small messages on an inherited socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace retort::launch {

struct ProcessStatus {
  // loading | waiting | training | saving | serving | done | stopped | interrupted | failed
  std::string state;
  int64_t step = 0;
  // One line for people; cut at 1000 bytes, and bytes that are not UTF-8 are replaced. State
  // failed: with the error's code, as Error::what().
  std::string message;
  std::string error;  // state failed: the name of the ErrorCode
  // State failed: another rank of the role met the error, and a vote brought it to this one.
  bool of_another_rank = false;

  bool operator==(const ProcessStatus&) const = default;
};

std::string encode_status(const ProcessStatus& status);
// nullopt if the text is not a status.
std::optional<ProcessStatus> decode_status(std::string_view text);

// The child's end; owns `fd` (SOCK_SEQPACKET; -1: nobody listens and nothing is sent). report()
// never waits: a launcher that does not read loses messages, the newest state comes with the next
// one. Used by one thread at a time.
class StatusPipe {
 public:
  explicit StatusPipe(int fd);
  ~StatusPipe();
  StatusPipe(const StatusPipe&) = delete;
  StatusPipe& operator=(const StatusPipe&) = delete;
  void report(const ProcessStatus& status);

 private:
  int fd_;
};

}  // namespace retort::launch
