#include "launch/ssh/run_hosts.h"

#include "launch/run_folder/run_folder.h"
#include "launch/run_folder/run_mark.h"

namespace retort::launch {
namespace fs = std::filesystem;

std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe, const fs::path& run_folder,
                                          const std::string& mark, HostsWanted wanted,
                                          const SignalCatcher& signals) {
  const fs::path logs = run_folder / kLogsFolder;
  fs::create_directories(logs);
  return std::make_unique<SshBackend>(links_to_hosts(recipe, run_folder, mark, logs), wanted,
                                      signals);
}

std::vector<fs::path> logs_of_hosts(const recipes::Recipe& recipe, const fs::path& run_folder) {
  std::vector<fs::path> logs;
  for (const HostLinkOptions& link : links_to_hosts(recipe, {}, {}, run_folder / kLogsFolder))
    logs.push_back(link.log);
  return logs;
}

std::set<fs::path> files_of_hosts(const recipes::Recipe& recipe) {
  std::set<fs::path> files{kRunMark};
  for (const fs::path& log : logs_of_hosts(recipe, {}))
    files.insert(log);
  return files;
}

std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts) {
  if (recipe.launch.rendezvous.address) return *recipe.launch.rendezvous.address;
  const bool is_said = recipe.rpc.bind != rpc::RpcOptions().bind;
  return hosts && !is_said ? hosts->launcher_address() : recipe.rpc.bind;
}

}  // namespace retort::launch
