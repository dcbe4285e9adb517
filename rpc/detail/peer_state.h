// What an agent keeps per peer name across connections: credit for calls in flight and counters.
// Any thread.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "rpc/agent.h"

namespace retort::rpc::detail {

inline constexpr uint64_t kMaxInflightCalls = 4096;  // per peer

class PeerState {
 public:
  PeerState(std::string name, uint64_t max_inflight_bytes)
      : name_(std::move(name)), max_bytes_(max_inflight_bytes) {}
  const std::string& name() const { return name_; }

  // Takes credit for one call; a call larger than the limit goes alone. Waits until `deadline` if
  // `wait`. kTimeout, kResourceExhausted (not waiting), kClosed.
  void acquire(uint64_t bytes, Deadline deadline, bool wait);
  void release(uint64_t bytes);
  void close();  // wakes the waiters with kClosed

  void count_sent(uint64_t bytes);
  void count_received(uint64_t bytes);
  void count_call(std::chrono::steady_clock::duration latency);
  PeerStats stats() const;

  // The largest message the peer accepts; known once it is connected.
  void set_max_message_bytes(uint64_t bytes);
  uint64_t max_message_bytes() const;

 private:
  const std::string name_;
  const uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  uint64_t inflight_bytes_ = 0, inflight_calls_ = 0;
  uint64_t sent_ = 0, received_ = 0, calls_ = 0, max_message_ = 0;
  std::array<float, 1024> latencies_ms_{};
  bool closed_ = false;
};

}  // namespace retort::rpc::detail
