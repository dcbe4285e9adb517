// How long what a run sends between its roles takes at a stated bandwidth, from sizes alone.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/role_plan.h"
#include "recipes/document/recipe.h"
#include "recipes/type/plan.h"

namespace retort::launch {

// One kind of traffic, as if its ends were on different hosts with one link each: what the busiest
// of these links carries in one direction.
//
//   payload    bytes_per_step of the role's LinkPlan                                 each step
//   ids        named_bytes_per_token of the role's LinkPlan for each token           each step
//   push       P * min(2, replicas): the first of a tree of generators gets P bytes, and
//              whoever has them sends two copies                      each weight_sync.every_steps
//   gradients  2 (n - 1) / n * G: a ring all-reduce of a rank's fp32 gradients over n = dp ranks;
//              distributed_optimizer: (n - 1) / n * (G + W), W its weights             each step
struct TransferPlan {
  std::string what;  // "payload teacher -> student"
  double bytes = 0;
  int64_t every_steps = 1;

  // The time on the link alone, without latency, framing, or anything beside it.
  double seconds(double link_gbit) const { return bytes * 8 / (link_gbit * 1e9); }
};

std::vector<TransferPlan> plan_transfers(const recipes::Recipe& recipe,
                                         const std::vector<RolePlan>& roles,
                                         const std::vector<recipes::LinkPlan>& links);

}  // namespace retort::launch
