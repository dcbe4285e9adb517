#include "launch/commands/run_hosts.h"

#include <vector>

namespace retort::launch {

std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const std::string& mark, HostsWanted wanted,
                                          const SignalCatcher& signals) {
  std::filesystem::create_directories(folder.logs());
  std::vector<HostLinkOptions> hosts;
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    hosts.push_back({.host = host,
                     .ssh = recipe.launch.ssh,
                     .run_folder = folder.path(),
                     .mark = mark,
                     .log = folder.logs() / ("host-" + host.host + ".log"),
                     .interval = recipe.rpc.heartbeat_interval,
                     .limit = recipe.rpc.peer_timeout});
  return std::make_unique<SshBackend>(std::move(hosts), wanted, signals);
}

std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts) {
  if (recipe.launch.rendezvous.address) return *recipe.launch.rendezvous.address;
  const bool is_said = recipe.rpc.bind != rpc::RpcOptions().bind;
  return hosts && !is_said ? hosts->launcher_address() : recipe.rpc.bind;
}

}  // namespace retort::launch
