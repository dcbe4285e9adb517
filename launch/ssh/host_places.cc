#include "launch/ssh/host_places.h"

#include <cstdlib>
#include <utility>

#include "launch/process/child_process.h"

namespace retort::launch {

HostPlaces::HostPlaces(const recipes::Recipe& recipe, const SshBackend& hosts)
    : HostPlaces(recipe, hosts, place_processes(recipe, hosts.lost())) {}

HostPlaces::HostPlaces(const recipes::Recipe& recipe, const SshBackend& hosts, Placement placement)
    : recipe_(recipe), hosts_(hosts), placement_(std::move(placement)) {}

void HostPlaces::place(ProcessSpec& spec) const {
  const size_t host = move(spec);
  const int64_t wanted = recipe_.roles.at(spec.context.role).world.threads;
  // A host that does not answer says nothing of its cores, and a process that runs there is told
  // nothing.
  if (hosts_.knows(host))
    spec.context.threads =
        threads_per_process(wanted, hosts_.facts(host).cores, placement_.processes[host]);
  // A child of the launcher would inherit the level of the log; on another host it must be told.
  if (const char* level = std::getenv("RETORT_LOG")) spec.env.emplace("RETORT_LOG", level);
}

void HostPlaces::place_again(const std::vector<ProcessSpec*>& replica) {
  std::vector<int64_t> ranks;
  for (const ProcessSpec* spec : replica)
    ranks.push_back(spec->context.rank);
  launch::place_again(recipe_, replica.front()->context.role, ranks, hosts_.lost(), placement_);
  for (ProcessSpec* spec : replica)
    move(*spec);
}

size_t HostPlaces::move(ProcessSpec& spec) const {
  const size_t host = placement_.host_of(spec.context.role, spec.context.rank);
  // A process that stays on its host takes the devices that it had, whoever came since, so that its
  // ranks_on_host does not change.
  const std::string& name = recipe_.launch.hosts[host].host;
  if (spec.host != name) spec.context.ranks_on_host = placement_.ranks_on(host);
  spec.host = name;
  if (recipe_.rpc.bind == rpc::RpcOptions().bind && hosts_.knows(host))
    spec.context.bind = hosts_.facts(host).address;
  return host;
}

}  // namespace retort::launch
