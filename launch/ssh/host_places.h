// Where each process of a run on hosts is, and where it goes when its host is lost.
#pragma once

#include <vector>

#include "launch/placement/placement.h"
#include "launch/ssh/ssh_backend.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

// Threads: one. Recipe and hosts outlive it.
class HostPlaces {
 public:
  // Places all processes on the hosts that are not lost. Errors of place_processes.
  HostPlaces(const recipes::Recipe& recipe, const SshBackend& hosts);
  // Where they are already.
  HostPlaces(const recipes::Recipe& recipe, const SshBackend& hosts, Placement placement);

  // A process listens where other hosts find it, unless the recipe says where, and has its host's
  // cores.
  void place(ProcessSpec& spec) const;
  // Those of a replica, before they are started again: the ones whose host is lost go to another,
  // with the threads that they had, so that they compute the same bits. kUnavailable when no other
  // has room.
  void place_again(const std::vector<ProcessSpec*>& replica);

 private:
  size_t move(ProcessSpec& spec) const;

  const recipes::Recipe& recipe_;
  const SshBackend& hosts_;
  Placement placement_;
};

}  // namespace retort::launch
