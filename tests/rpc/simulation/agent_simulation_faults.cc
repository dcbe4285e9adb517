// What goes wrong in a simulation.
#include "tests/rpc/simulation/agent_simulation.h"

namespace retort::rpc::simulation {
namespace {

using namespace std::chrono_literals;

}  // namespace

void AgentSimulation::injure() {
  Scheduler& random = world_.scheduler;
  Network& network = world_.network;
  const auto with = [&](ConnectionKind kind, const auto& task) {
    if (const auto connection = network.pick_connection(kind)) task(*connection);
  };

  for (uint64_t faults = 1 + random.pick(4); faults > 0; --faults) {
    random.sleep(random.up_to(300));
    const auto fault = static_cast<Fault>(random.pick(static_cast<uint64_t>(Fault::kLast) + 1));
    const std::string name = any()->name();

    switch (fault) {
      case Fault::kResetControl:
        with(ConnectionKind::kControl, [&](const Connection& c) { network.reset(c); });
        break;
      case Fault::kMuteControl:
        with(ConnectionKind::kControl, [&](const Connection& c) { network.mute(c, true); });
        break;
      case Fault::kMuteControlOneWay:
        with(ConnectionKind::kControl, [&](const Connection& c) { network.mute(c, false); });
        break;
      case Fault::kResetData:
        with(ConnectionKind::kData, [&](const Connection& c) { network.reset(c); });
        break;
      case Fault::kMuteData:
        with(ConnectionKind::kData, [&](const Connection& c) { network.mute(c, true); });
        break;
      case Fault::kMuteDataOneWay:
        with(ConnectionKind::kData, [&](const Connection& c) { network.mute(c, false); });
        break;
      case Fault::kFreeze: freeze(named(name), random.up_to(3 * peer_timeout_.count())); break;
      case Fault::kReplaceFrozen:
        freeze(named(name), random.up_to(3 * peer_timeout_.count()));
        replace(name, random.up_to(100));
        break;
      case Fault::kKill:
        network.kill(named(name)->host(), false);
        replace(name, random.up_to(500));
        break;
      case Fault::kKillSilently:
        network.kill(named(name)->host(), true);
        replace(name, random.up_to(500));
        break;
      case Fault::kPartition: partition(); break;
    }
  }
}

void AgentSimulation::freeze(const std::shared_ptr<Process>& process, milliseconds time) {
  process->host().frozen = true;
  world_.scheduler.after(time, [this, process] { world_.network.thaw(process->host()); });
}

// Another process of that name takes over; the one before ends as if it had been told to.
void AgentSimulation::replace(const std::string& name, milliseconds pause) {
  const std::shared_ptr<Process> old = named(name);
  former_.push_back(old);
  world_.directory.erase(name);
  world_.scheduler.sleep(pause);
  const auto next = start(name, old->options().restart + 1);
  named(name) = next;
  if (!name.starts_with("client")) return;
  ++num_callers_;
  world_.scheduler.spawn(
      [this, next] {
        connect(*next);
        --num_callers_;
      },
      nullptr);
}

void AgentSimulation::connect(Process& client) {
  for (const auto& server : servers_)
    try {
      client.links().keep(server, Deadline::after(30s));
    } catch (const Error& error) {
      const bool replaced = named(client.name()).get() != &client;
      if (!replaced) world_.fail(client.name() + " cannot connect: " + error.what());
    }
}

void AgentSimulation::partition() {
  Scheduler& random = world_.scheduler;
  const auto client = named(clients_[random.pick(clients_.size())]);
  const auto server = named(servers_[random.pick(servers_.size())]);
  world_.network.partition(client->host(), server->host());
  random.after(random.up_to(1000), [this] { world_.network.heal(); });
}

}  // namespace retort::rpc::simulation
