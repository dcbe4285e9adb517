// How a generator reaches the environment of its episodes.
#pragma once

#include <memory>

#include "recipes/run/rank/rank_context.h"
#include "roles/environment/client.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::recipes {

// Asks the role of the recipe's `environment`, once it is connected.
std::shared_ptr<roles::RemoteEnvironment> remote_environment(const RankContext& context);

// Connects `agent` to all replicas of the role, as far as they come within the role's time to load,
// and asks them what they are. Until its end, which stops the environment and comes before the
// agent's, those that are lost are connected to again, if the role may begin anew.
//
// Errors: kTimeout for a role that does not come, kMismatch for replicas that differ, kCancelled
//   when the run stops meanwhile.
class EnvironmentConnection {
 public:
  EnvironmentConnection(const RankContext& context, rpc::Agent& agent,
                        std::shared_ptr<roles::RemoteEnvironment> environment);
  ~EnvironmentConnection();
  EnvironmentConnection(const EnvironmentConnection&) = delete;
  EnvironmentConnection& operator=(const EnvironmentConnection&) = delete;

 private:
  rpc::PeerLinks links_;
  const std::shared_ptr<roles::RemoteEnvironment> environment_;
};

}  // namespace retort::recipes
