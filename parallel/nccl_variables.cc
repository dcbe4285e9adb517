#include "parallel/nccl_variables.h"

namespace retort::parallel {
namespace {

// Whether a rank is in several groups that have collectives on its device.
bool has_several_groups(const Layout& layout) {
  return (layout.tp > 1 ? 1 : 0) + (layout.pp > 1 ? 1 : 0) + (layout.dp > 1 ? 1 : 0) > 1;
}

}  // namespace

std::map<std::string, std::string> nccl_variables(const NcclOptions& options) {
  std::map<std::string, std::string> variables;
  // Without "=" NCCL takes every interface that begins so: eth1 for eth10, too.
  if (!options.interface.empty()) variables["NCCL_SOCKET_IFNAME"] = "=" + options.interface;
  if (options.deterministic) {
    variables["NCCL_ALGO"] = "Ring";
    variables["NCCL_PROTO"] = "Simple";
  }
  if (has_several_groups(options.layout)) variables["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  return variables;
}

}  // namespace retort::parallel
