// The peers that an agent has ever met, by name: which of them are connected, where each was
// reached, and its PeerState, which outlives connections.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/agent.h"
#include "rpc/detail/peer_state.h"
#include "rpc/method_stats.h"

namespace retort::rpc::detail {

class PeerTable {
 public:
  // The bounds of each peer: how many bytes and calls may be in flight.
  PeerTable(uint64_t max_inflight_bytes, uint64_t max_inflight_calls)
      : max_bytes_(max_inflight_bytes), max_calls_(max_inflight_calls) {}

  // The state of a peer that may never have been met.
  std::shared_ptr<PeerState> state(const std::string& peer);
  // The state of a peer that is connected. kPeerLost if it is not, kClosed after close().
  std::shared_ptr<PeerState> live(const std::string& peer) const;
  void set_live(const std::string& peer, bool live);
  std::vector<std::string> names() const;  // of those that are connected

  void set_address(const std::string& peer, const std::string& address);
  // Empty: it was never dialed.
  std::string address(const std::string& peer) const;

  // kInvalidArgument for a peer that never was.
  PeerStats stats(std::string_view peer) const;
  std::vector<MethodTraffic> method_stats() const;

  // Whoever waits for credit is woken with kClosed. False if it was closed before.
  bool close();

 private:
  struct Peer {
    std::shared_ptr<PeerState> state;
    bool live = false;
    std::string address;  // where it was reached last
  };

  const uint64_t max_bytes_, max_calls_;
  mutable std::mutex mutex_;  // nothing is called with it held
  std::map<std::string, Peer> peers_;
  bool closed_ = false;
};

}  // namespace retort::rpc::detail
