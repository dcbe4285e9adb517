// What one rank of a serving role is made of, and its life from there to its end.
#pragma once

#include <functional>
#include <memory>

#include "engines/weights/model_watch.h"
#include "launch/ranks/attached_engine.h"
#include "parallel/world.h"
#include "recipes/run/rank/rank_context.h"
#include "roles/served_role.h"
#include "rpc/agent.h"

namespace retort::launch {

// What stands below a member is destroyed before it.
struct ServingRank {
  // The ranks that hold one model together; null where this is one of them on the CPU, or an engine
  // has the model.
  std::unique_ptr<parallel::World> world;
  // Addresses are published when all ranks of `world` serve, not each when its own does.
  bool published_together = false;
  // The engine of others that the role speaks for; null: the model is one of ours.
  std::unique_ptr<AttachedEngine> engine;
  // Whether that is still the one it was; null where the role finds out by itself.
  std::unique_ptr<engines::ModelWatch> watch;
  std::unique_ptr<roles::ServedRole> role;
  // Of a role that calls others: connects to them, when the role serves and before its address is
  // published. What it returns ends before the agent does.
  std::function<std::shared_ptr<void>(rpc::Agent& agent)> connect{};
};

// Publishes the address of this rank's agent, answers until the run stops, and reports meanwhile.
// Errors: what ends the role, or the engine it speaks for; the process begins anew.
// Threads: compute.
void serve_until_stopped(const recipes::RankContext& context, ServingRank rank);

}  // namespace retort::launch
