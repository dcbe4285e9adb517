// What a process needs to know to be taken at the launcher's port.
#pragma once

#include <string>

#include "base/units.h"
#include "rpc/options.h"

namespace retort::rpc {

struct RendezvousAccess {
  std::string name;    // of this process, "student/0"; the server has a name of its own
  std::string run;     // the id of this start of the run, the same in all of its processes
  std::string secret;  // the run's
  Encryption encryption = Encryption::kAuto;
  // Of the server: what those say instead of `run` who have not been told that yet; empty: nobody.
  std::string meeting = {};
  Duration peer_timeout{15'000};  // rpc.peer_timeout: no cut that is shorter ends a connection
};

}  // namespace retort::rpc
