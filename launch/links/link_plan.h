// What crosses between the roles of a recipe in a step, and between which hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/document/recipe.h"

namespace retort::launch::links {

// A serving role and the student: one direction of what they exchange.
struct Traffic {
  std::string role;
  bool to_student = true;     // its answers; else the weights that are pushed to it
  int64_t message_bytes = 0;  // of one answer, or one bucket
  double step_bytes = 0;      // of all ranks together, at most (retort plan)
};
// In the recipe's order of roles. A role whose answers are numbers a token has them as they are; a
// generator's samples are a few bytes a token and left out beside the weights.
std::vector<Traffic> traffic_of(const recipes::Recipe& recipe);

// Two ends that talk, each an index into launch.hosts (both 0: this host), and their part of what
// crosses.
struct HostPair {
  size_t student = 0, server = 0;
  double share = 1;
  bool operator==(const HostPair&) const = default;
};
std::vector<HostPair> host_pairs(const recipes::Recipe& recipe, const std::string& role);

}  // namespace retort::launch::links
