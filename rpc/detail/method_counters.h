// Counts the calls between an agent and one peer, by method. Any thread.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rpc/method_stats.h"

namespace retort::rpc::detail {

// Where the time of a call went at the server, on the clock of the server alone: two clocks need
// not agree.
struct ServedTimes {
  std::chrono::microseconds queue{0}, handler{0};
};

// A call that has ended.
struct EndedCall {
  enum class How { kAnswered, kFailed, kCancelled };
  How how = How::kFailed;
  uint64_t bytes_sent = 0, bytes_received = 0;
  ServedTimes served{};                    // answered
  std::chrono::nanoseconds round_trip{0};  // answered, called here: without `waited`
  std::chrono::nanoseconds waited{0};      // for credit or room
};

class MethodCounters {
 public:
  void count_called(const std::string& method, const EndedCall& call);
  void count_served(const std::string& method, const EndedCall& call);
  // Appends those of `peer`, the methods in alphabetical order.
  void append_to(std::vector<MethodTraffic>& traffic, const std::string& peer) const;

 private:
  void count(bool served, const std::string& method, const EndedCall& call);

  mutable std::mutex mutex_;
  std::map<std::pair<bool, std::string>, MethodStats> stats_;  // served?, method
};

}  // namespace retort::rpc::detail
