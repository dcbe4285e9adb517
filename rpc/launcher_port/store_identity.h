// Who a process is at the launcher's port, where the run's store and the supervision are.
#pragma once

#include <string>

#include "rpc/launcher_port/rendezvous_access.h"
#include "rpc/transport/proof.h"

namespace retort::rpc::launcher_port {

// What two processes must have in common; their proof compares it. Raised with every change of the
// frames of the store (rpc/rendezvous) or of the supervision (rpc/supervision).
inline constexpr const char* kStoreSchema = "retort store 1, supervision 1, archive 1";
// The launcher's name in its proof.
inline constexpr const char* kStoreName = "launcher/store";

// `name`: the process's own, or kStoreName for the launcher. kInvalidArgument for what cannot be.
transport::Identity identity_of(const RendezvousAccess& access, const std::string& name);

}  // namespace retort::rpc::launcher_port
