#include "rpc/launcher_port/store_identity.h"

namespace retort::rpc::launcher_port {

transport::Identity identity_of(const RendezvousAccess& access, const std::string& name) {
  transport::Identity identity{.name = name,
                               .run = access.run,
                               .schema = kStoreSchema,
                               .credentials = {{"run", access.secret}},
                               .meeting = access.meeting};
  identity.validate();
  return identity;
}

}  // namespace retort::rpc::launcher_port
