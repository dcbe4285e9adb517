// What a recipe will start and what it will cost, from sizes alone: `retort plan`, and plan.json in
// the folder of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/plan/device_load.h"
#include "launch/plan/role_plan.h"
#include "launch/plan/transfer_plan.h"
#include "recipes/document/recipe.h"
#include "recipes/type/plan.h"

namespace retort::launch {

// What runs on one of launch.hosts.
struct HostPlan {
  std::string host;
  int64_t slots = 0;
  std::vector<std::string> processes;
};

// A path that the run reads or writes, and on which hosts it must be the same.
struct PathPlan {
  std::string key, path;
  std::string role;                // whose processes read it; "": all of them, and they write there
  std::vector<std::string> hosts;  // of launch.hosts with a process of it; empty: nobody knows yet
};

struct Plan {
  std::vector<HostPlan> hosts;  // in the recipe's order; none without launch.hosts
  std::vector<RolePlan> roles;
  std::vector<DeviceLoad> shared_devices;
  std::vector<recipes::LinkPlan> links;
  std::vector<recipes::CachePlan> caches;
  std::vector<TransferPlan> transfers;
  std::vector<PathPlan> paths;  // the run's folder, then what is read
  double tokens_per_step = 0;   // of all ranks, at most

  // The role with the most work per token and rank sets the pace when everything overlaps.
  const RolePlan& bottleneck() const;
};

// Reads the models' configs, no weights. kInvalidArgument where launch.hosts has no room.
Plan make_plan(const recipes::Recipe& recipe);

}  // namespace retort::launch
