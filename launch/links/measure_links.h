// retort check --links: round trips and rates between the hosts of a recipe, measured with the
// agents that a run would have.
#pragma once

#include <string>
#include <vector>

#include "launch/links/link_job.h"
#include "launch/links/link_plan.h"
#include "launch/process/signal_catcher.h"

namespace retort::launch::links {

// One direction between two hosts, once with encryption and once without.
struct MeasuredLink {
  Traffic traffic;
  HostPair pair;
  std::string student_host, server_host;
  LinkResult encrypted, plain;
};

struct MeasuredLinks {
  std::vector<MeasuredLink> links;
  bool encrypts = false;  // what rpc.encryption comes to where this recipe runs
};

// Starts a process on each host for each end, as the recipe's backend starts ranks: with its
// addresses, ports, channels and limits; measures pair after pair, and ends them. Nothing is left.
//
// Errors: those of SshBackend; kUnavailable for a process that ends early, with its last words;
//   kTimeout; kCancelled when a signal comes. What two processes cannot do with each other is the
//   result of their link.
MeasuredLinks measure_links(const recipes::Recipe& recipe, const SignalCatcher& signals);

// A table for each role. What a step sends there, by formula, takes so many seconds at that rate
// alone: where answers are asked for ahead of their step it costs nothing while that is shorter
// than the step.
std::string link_table(const MeasuredLinks& measured);

}  // namespace retort::launch::links
