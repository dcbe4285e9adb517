// The environment that NCCL is given: all that this program chooses for it, in one place. What the
// user sets stays (roles.<name>.env, and for the interface what the process inherits), and each
// rank logs what NCCL finds. c10d's own switches are the CUDA module's (parallel/cuda), as they
// belong to the watch over its groups.
#pragma once

#include <map>
#include <string>

#include "parallel/layout.h"

namespace retort::parallel {

struct NcclOptions {
  // That has the address at which Gloo meets the other ranks: NCCL's own choice may be a network
  // that does not lead to them. Empty: not known.
  std::string interface;
  bool deterministic = false;  // of the recipe
  Layout layout = {};          // of the world; a serving role's replica has dp 1
};

// Names and values:
//
//   NCCL_SOCKET_IFNAME          the interface, and no other that begins like it
//   NCCL_ALGO, NCCL_PROTO       one order of every sum, with `deterministic`: trees, and sums in a
//                               switch, add in other orders, and NCCL chooses by what it measures
//   NCCL_LAUNCH_ORDER_IMPLICIT  with two of tp, dp and pp, as a rank is in several groups then that
//                               may have collectives in flight at once (pp: that of tied tables).
//                               The device runs them in the order in which the rank's host has
//                               queued them. Two ranks with several groups in common have one order
//                               of all their starts (tests/parallel/stand_in compares it); two that
//                               share one group have one order in it, and may start what is in
//                               other groups before or behind it.
std::map<std::string, std::string> nccl_variables(const NcclOptions& options);

}  // namespace retort::parallel
