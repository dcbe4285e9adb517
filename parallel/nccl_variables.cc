#include "parallel/nccl_variables.h"

namespace retort::parallel {

std::map<std::string, std::string> nccl_variables(const NcclOptions& options) {
  std::map<std::string, std::string> variables;
  // Without "=" NCCL takes every interface that begins so: eth1 for eth10, too.
  if (!options.interface.empty()) variables["NCCL_SOCKET_IFNAME"] = "=" + options.interface;
  if (options.deterministic) {
    variables["NCCL_ALGO"] = "Ring";
    variables["NCCL_PROTO"] = "Simple";
  }
  if (options.layout.tp > 1 && options.layout.dp > 1) variables["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  return variables;
}

}  // namespace retort::parallel
