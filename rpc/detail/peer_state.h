// What an agent keeps per peer name across connections: credit for calls in flight and counters.
// Any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "rpc/agent.h"
#include "rpc/detail/method_counters.h"

namespace retort::rpc::detail {

// Unanswered calls that an agent takes of one peer: rpc.max_inflight_calls, and those that are made
// where nothing may wait.
inline constexpr uint64_t kMaxIncomingCalls = 4096;
// Up to here a message is small: it does not wait for the room that large ones take.
inline constexpr uint64_t kSmallBytes = 64 << 10;

// What a call does that finds no credit.
enum class NoCredit {
  kWait,
  kFail,
  kOverdraw  // it is made where nothing may wait
};

class PeerState {
 public:
  PeerState(std::string name, uint64_t max_inflight_bytes, uint64_t max_inflight_calls)
      : name_(std::move(name)), max_bytes_(max_inflight_bytes), max_calls_(max_inflight_calls) {}
  const std::string& name() const { return name_; }

  // Takes credit for one call, until the result is dropped: by then the call has ended and its
  // memory is not read any more. Large calls get it in the order in which they ask; one that is
  // larger than the limit goes when no other large one is under way.
  // `waited`, also of a call that gets none: how long, unchanged if there was no need to.
  // kTimeout (waited until `deadline`), kResourceExhausted (did not wait), kClosed. Without a
  // deadline it ends at the latest when the peer is lost, because its calls end then.
  static std::shared_ptr<void> acquire(const std::shared_ptr<PeerState>& peer, uint64_t bytes,
                                       const std::optional<Deadline>& deadline, NoCredit without,
                                       std::chrono::nanoseconds* waited = nullptr);
  void close();  // wakes the waiters with kClosed

  void count_sent(uint64_t bytes);
  void count_received(uint64_t bytes);
  void count_call(std::chrono::steady_clock::duration latency);
  PeerStats stats() const;
  MethodCounters& methods() { return methods_; }

  // The largest message and the number of calls that the peer accepts; known once it is connected.
  void set_limits(uint64_t max_message_bytes, uint64_t max_calls);
  uint64_t max_message_bytes() const;
  // Whether the peer has said that it sees devices; if not, no tensor can be sent to one of its.
  void set_sees_devices(bool sees) { sees_devices_ = sees; }
  bool sees_devices() const { return sees_devices_; }

 private:
  bool has_room(uint64_t bytes) const;
  bool wait_for_room(std::unique_lock<std::mutex>& lock, uint64_t bytes,
                     const std::optional<Deadline>& deadline);
  void release(uint64_t bytes);

  const std::string name_;
  const uint64_t max_bytes_, max_calls_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  uint64_t inflight_bytes_ = 0, inflight_calls_ = 0, inflight_large_ = 0;
  std::list<uint64_t> line_;  // bytes of the large calls that wait
  uint64_t sent_ = 0, received_ = 0, calls_ = 0, max_message_ = 0;
  uint64_t peers_max_calls_ = kMaxIncomingCalls;
  std::array<float, 1024> latencies_ms_{};
  bool closed_ = false;
  std::atomic<bool> sees_devices_{false};
  MethodCounters methods_;
};

}  // namespace retort::rpc::detail
