// What an acceptor has seen, for logs and metrics. Readable from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rpc/transport/refusal.h"

namespace retort::rpc::transport {

struct AcceptorCounters {
  std::atomic<uint64_t> accepted{0};  // TCP connections
  std::atomic<uint64_t> proven_control{0};
  std::atomic<uint64_t> proven_data{0};
  std::atomic<uint64_t> proven_supervision{0};
  std::array<std::atomic<uint64_t>, kNumRefusals> refused{};  // by Refusal
  std::atomic<uint64_t> held_back{0};      // times that a connection found no room
  std::atomic<uint64_t> accept_errors{0};  // no descriptors left, mostly

  uint64_t of(Refusal refusal) const { return refused[static_cast<size_t>(refusal)]; }
  uint64_t evicted() const { return of(Refusal::kEvicted); }
  uint64_t timed_out() const { return of(Refusal::kTimeout); }
};

}  // namespace retort::rpc::transport
