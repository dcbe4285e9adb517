// Keeps the connections to named peers: a peer that is lost is looked up and connected to again,
// for as long as it takes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/units.h"
#include "rpc/agent.h"

namespace retort::rpc {

// What was asked of a peer when it was lost has failed with kPeerLost; whoever asked asks again
// once the peer is up(), if that is right for the method.
//
// Use: keep() each peer once, before it is called. The agent must outlive this object, which is its
//   only listener (Agent::on_peer_lost).
// Threads: any; threads of its own look up, connect, and call the listeners: as many as there are
//   lost peers to be tried, at most kAtOnce, so that no peer waits for those that stay away.
class PeerLinks {
 public:
  struct Options {
    // Where a peer is now, "host:port". On threads of this object, or keep()'s caller's; waits
    // until the deadline at the most; throws when nobody knows, kTimeout when nobody does yet.
    std::function<std::string(const std::string& peer, Deadline)> find;
    Duration attempt{10'000};  // for one look-up and one connection to a lost peer
    // Between two attempts: doubled each time, up to the longest, less a random part.
    Duration first_pause{50}, longest_pause{1'000};
  };
  PeerLinks(Agent& agent, Options options);
  // Gives up the attempts that are under way; waits for a look-up, kLookUpSlice at the most.
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Waits until the peer can be found and is connected. Whoever else listens where it was (its port
  // may have gone to another process) is passed over until the deadline. Errors: find's,
  // Agent::connect's.
  void keep(const std::string& peer, Deadline deadline);

  // The same for many peers whose addresses are known: first where they were said to be, then where
  // `find` says; kAtFirst at a time, up to kAtOnce where they answer quickly
  // (detail::ConcurrencyLimit). Each process takes them in an order of its own, so that a crowd
  // does not come to one peer after the other. Errors: the first one; attempts that are under way
  // then end first.
  static constexpr size_t kAtFirst = 1, kAtOnce = 32;
  static constexpr Duration kLookUpSlice{500};
  struct Place {
    std::string peer;
    std::string address;
  };
  void keep_all(std::vector<Place> places, Deadline deadline);

  bool up(const std::string& peer) const;
  // Waits until all of them are up; false when some are not by the deadline.
  bool wait_up(const std::vector<std::string>& peers, Deadline deadline) const;
  // Waits until some peer came back or was lost since `seen`, a number that changes() gave.
  void wait_change(uint64_t seen, Deadline deadline) const;
  uint64_t changes() const;

  // `listener` is called each time a kept peer came back, on a thread of this object, one call at a
  // time, and must not block. Returns what ends it; that waits for a call which is under way.
  std::function<void()> on_back(std::function<void(const std::string& peer)> listener);

 private:
  struct Link {
    bool up = false;
    bool tried_now = false;  // by one of the threads
    Duration pause{0};
    std::chrono::steady_clock::time_point next{};  // attempt
    std::string last_error;
  };
  struct State;

  // `address`: where it is tried first; empty: as `find` says. `given_up`: when true, the next
  // failure is the last.
  void keep_at(const Place& place, Deadline deadline, const std::atomic<bool>& given_up);

  void run();
  void add_thread();
  std::string next_due(std::unique_lock<std::mutex>& lock);
  void attempt(const std::string& peer);
  void connect(const std::string& peer);
  std::string find(const std::string& peer, Deadline deadline);
  std::string look_up(const std::string& peer, Deadline deadline);
  bool is_live(const std::string& peer) const;
  static bool may_be_elsewhere(const Error& error);
  void tell(const std::string& peer);

  Agent& agent_;
  const Options options_;
  const std::shared_ptr<State> state_;  // shared with the agent's callback
  std::mutex listeners_mutex_;
  std::map<uint64_t, std::function<void(const std::string&)>> listeners_;
  uint64_t next_listener_ = 0;
  std::vector<std::thread> threads_;  // with the state's lock held
};

// What `ask` returns, which is called again while it fails with kPeerLost: when all of `peers` are
// up, until the deadline. Without links it is called once.
template <class Ask>
auto ask_until_up(const PeerLinks* links, const std::vector<std::string>& peers, Deadline deadline,
                  const Ask& ask) {
  for (;;) {
    try {
      return ask();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost || !links || deadline.expired()) throw;
      // One that says goodbye is up until it is gone.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!links->wait_up(peers, deadline)) throw;
    }
  }
}

}  // namespace retort::rpc
