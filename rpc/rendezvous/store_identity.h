// Who a process is at the launcher's port, where the run's store and the supervision are.
#pragma once

#include <string>

#include "rpc/rendezvous/rendezvous_access.h"
#include "rpc/transport/proof.h"

namespace retort::rpc::rendezvous {

// `name`: the process's own, or kStoreName for the launcher. kInvalidArgument for what cannot be.
transport::Identity identity_of(const RendezvousAccess& access, const std::string& name);

}  // namespace retort::rpc::rendezvous
