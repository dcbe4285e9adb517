// An environment in other processes: the replicas of a role.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/future.h"
#include "roles/environment/environment.h"
#include "roles/environment/methods.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::roles {

// Each replica is an environment of its own, and an episode stays with the one that opened it. A
// new one goes to the replica that has the fewest of ours; where none has room (others have
// episodes there too), or none lives, it waits for one within `patience`.
//
// A replica that is lost takes its episodes with it: their calls fail with kPeerLost. It is asked
// again once it is connected again, if there are links, and says that it is what it was.
//
// Use: attach(), info(), then as every Environment.
// Errors: as Environment; kResourceExhausted or kPeerLost for an episode that found no replica in
//   time, kMismatch from info() for replicas that differ.
// Threads: any. One of its own, on which episodes wait; it ends in stop(). Futures complete there,
//   on the agent's loop, or at once.
class RemoteEnvironment final : public Environment {
 public:
  struct Options {
    std::string role;                   // "tools"
    std::vector<std::string> replicas;  // "tools/0", ...
    // Of a call. The environment has a timeout of its own, and says more when it is over: this one
    // is longer.
    std::chrono::milliseconds timeout{120'000};
    // Of an open, which also waits while the environment's program starts again, or for room there.
    std::chrono::milliseconds open_timeout{120'000};
    std::chrono::milliseconds patience{0};
  };
  explicit RemoteEnvironment(Options options);
  // As stop().
  ~RemoteEnvironment() override;

  // All replicas are connected to `agent`, which is used until stop() has returned, as are `links`,
  // which connect again to what is lost; null: a lost replica stays lost.
  void attach(rpc::Agent& agent, rpc::PeerLinks* links);

  // Of all replicas together: the role's name, and the sum of their episodes.
  EnvironmentInfo info() override;
  Future<OpenedEpisode> open(OpenEpisode request) override;
  Future<EpisodeAnswer> step(EpisodeTurn turn) override;
  Future<ClosedEpisode> close(CloseEpisode request) override;
  void stop() override;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // shared with the calls in flight
};

}  // namespace retort::roles
