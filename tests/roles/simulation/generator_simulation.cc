#include "tests/roles/simulation/generator_simulation.h"

#include <utility>

#include "base/error.h"

namespace retort::roles::simulation {
namespace {

using namespace std::chrono_literals;
using rpc::simulation::Connection;
using rpc::simulation::ConnectionKind;

// Of simulated time.
constexpr milliseconds kRun{20min}, kCallers{5min}, kForgotten{10s}, kEnded{20s};

}  // namespace

GeneratorSimulation::GeneratorSimulation(uint64_t seed)
    : world_(seed, {.latency_ms = static_cast<int64_t>(seed % 5),
                    .bytes_per_ms = seed % 2 == 0 ? uint64_t{1} << 40 : 20'000,
                    .data_silence = kPeerTimeout}),
      calm_(one_of(4)) {}

std::string GeneratorSimulation::run() {
  world_.scheduler.spawn([this] { conduct(); }, nullptr);
  const bool ended =
      world_.scheduler.run([&] { return ended_ || !world_.failure().empty(); }, kRun);
  if (!ended) world_.fail("something waits for ever");
  return world_.failure();
}

// Somebody who asks, on a host of its own.
void GeneratorSimulation::begin(const std::string& name, uint64_t restart,
                                void (GeneratorSimulation::*role)(HostPtr)) {
  ++at_work_;
  const HostPtr host = world_.network.add_host(name);
  hosts_.push_back(host);
  world_.scheduler.spawn(
      [this, host, role] {
        try {
          (this->*role)(host);
        } catch (const Error& error) {
          if (!host->killed()) world_.fail(host->name() + ": " + error.what());
        }
        --at_work_;
      },
      host.get());
}

void GeneratorSimulation::conduct() {
  // With more than two, replicas pass weights on to one another.
  const uint64_t replicas = one_of(3) ? 3 + pick(4) : 1 + pick(2);
  for (uint64_t i = 0; i < replicas; ++i) {
    names_.push_back("generator/" + std::to_string(i));
    generators_[names_.back()] = std::make_shared<GeneratorProcess>(world_, names_.back(), 0);
  }
  begin("student/0", 0, &GeneratorSimulation::train);
  begin("student/1", 0, &GeneratorSimulation::submit_and_go_away);
  if (one_of(2)) begin("student/2", 0, &GeneratorSimulation::send_late_weights);

  if (!calm_) injure();
  if (!world_.wait_until([&] { return at_work_ == 0; }, kCallers, "a caller does not end")) return;
  for (const auto& [name, process] : generators_)
    if (!world_.wait_until([&] { return !process->holds_anything(); }, kForgotten,
                           name + " keeps what nobody will collect"))
      return;
  end();
}

void GeneratorSimulation::injure() {
  rpc::simulation::Network& network = world_.network;
  for (uint64_t faults = 1 + pick(4); faults > 0 && at_work_ > 0; --faults) {
    world_.scheduler.sleep(world_.scheduler.up_to(1500));
    const std::string name = names_[pick(names_.size())];
    const auto kind = one_of(2) ? ConnectionKind::kControl : ConnectionKind::kData;
    const auto connection = network.pick_connection(kind);
    // Of a generator, or of somebody who asks.
    const HostPtr frozen = one_of(2) ? generators_.at(name)->host() : hosts_[pick(hosts_.size())];

    switch (pick(6)) {
      case 0:
        if (connection) network.mute(*connection, one_of(2));
        break;
      case 1:
        if (connection) network.reset(*connection);
        break;
      case 2:
        frozen->frozen = true;
        world_.scheduler.after(world_.scheduler.up_to(2 * kPeerTimeout.count()),
                               [this, frozen] { world_.network.thaw(*frozen); });
        break;
      case 3: partition(); break;
      case 4: replace(name, false); break;
      case 5: replace(name, true); break;
    }
  }
}

// The launcher starts it again where it was.
void GeneratorSimulation::replace(const std::string& name, bool silent) {
  const auto old = generators_.at(name);
  world_.network.kill(*old->host(), silent);
  former_.push_back(old);
  world_.directory.erase(name);
  world_.scheduler.sleep(world_.scheduler.up_to(1000));
  generators_[name] = std::make_shared<GeneratorProcess>(world_, name, old->restart() + 1);
}

void GeneratorSimulation::partition() {
  const auto generator = generators_.at(names_[pick(names_.size())])->host();
  const HostPtr other =
      one_of(3) ? generators_.at(names_[pick(names_.size())])->host() : hosts_[pick(hosts_.size())];
  world_.network.partition(*other, *generator);
  world_.scheduler.after(world_.scheduler.up_to(2 * kPeerTimeout.count()),
                         [this] { world_.network.heal(); });
}

void GeneratorSimulation::end() {
  for (const auto& [name, process] : generators_)
    former_.push_back(process);
  generators_.clear();
  size_t stopped = 0;
  for (const auto& process : former_)
    world_.scheduler.spawn(
        [process, &stopped] {
          process->stop();
          ++stopped;
        },
        nullptr);
  if (!world_.wait_until([&] { return stopped == former_.size(); }, kEnded,
                         "a generator does not end"))
    return;

  former_.clear();
  hosts_.clear();
  world_.wait_until([&] { return world_.scheduler.num_threads() <= 1; }, kEnded,
                    "a thread does not end");
  world_.wait_until([&] { return world_.network.num_ends() == 0; }, kEnded, "a session is left");
  ended_ = true;
}

}  // namespace retort::roles::simulation
