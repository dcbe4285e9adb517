#include "launch/commands/run_hosts.h"

namespace retort::launch {

std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const std::string& mark, HostsWanted wanted,
                                          const SignalCatcher& signals) {
  std::filesystem::create_directories(folder.logs());
  return std::make_unique<SshBackend>(links_to_hosts(recipe, folder.path(), mark, folder.logs()),
                                      wanted, signals);
}

std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts) {
  if (recipe.launch.rendezvous.address) return *recipe.launch.rendezvous.address;
  const bool is_said = recipe.rpc.bind != rpc::RpcOptions().bind;
  return hosts && !is_said ? hosts->launcher_address() : recipe.rpc.bind;
}

}  // namespace retort::launch
