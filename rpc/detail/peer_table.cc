#include "rpc/detail/peer_table.h"

#include "base/error.h"

namespace retort::rpc::detail {

std::shared_ptr<PeerState> PeerTable::state(const std::string& peer) {
  std::lock_guard lock(mutex_);
  auto& entry = peers_[peer];
  if (!entry.state) {
    entry.state = std::make_shared<PeerState>(peer, max_bytes_, max_calls_);
    if (closed_) entry.state->close();
  }
  return entry.state;
}

std::shared_ptr<PeerState> PeerTable::live(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  if (closed_) throw Error(ErrorCode::kClosed, "the agent is closed");
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.live)
    throw Error(ErrorCode::kPeerLost, "no connection to this peer; connect() first")
        .with("peer", peer);
  return found->second.state;
}

void PeerTable::set_live(const std::string& peer, bool live) {
  std::lock_guard lock(mutex_);
  peers_[peer].live = live;
}

std::vector<std::string> PeerTable::names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, peer] : peers_)
    if (peer.live) names.push_back(name);
  return names;
}

void PeerTable::set_address(const std::string& peer, const std::string& address) {
  std::lock_guard lock(mutex_);
  peers_[peer].address = address;
}

std::string PeerTable::address(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? "" : found->second.address;
}

PeerStats PeerTable::stats(std::string_view peer) const {
  std::shared_ptr<PeerState> state;
  {
    std::lock_guard lock(mutex_);
    const auto found = peers_.find(std::string(peer));
    if (found == peers_.end())
      throw Error(ErrorCode::kInvalidArgument, "no peer of this name was ever connected")
          .with("peer", peer);
    state = found->second.state;
  }
  return state->stats();
}

std::vector<MethodTraffic> PeerTable::method_stats() const {
  std::map<std::string, std::shared_ptr<PeerState>> states;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, peer] : peers_)
      if (peer.state) states.emplace(name, peer.state);
  }

  std::vector<MethodTraffic> traffic;
  for (const auto& [name, state] : states)
    state->methods().append_to(traffic, name);
  return traffic;
}

bool PeerTable::close() {
  std::vector<std::shared_ptr<PeerState>> states;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    closed_ = true;
    for (const auto& [name, peer] : peers_)
      states.push_back(peer.state);
  }
  // Each state has a lock of its own, which is not taken under this one.
  for (const auto& state : states)
    state->close();
  return true;
}

}  // namespace retort::rpc::detail
