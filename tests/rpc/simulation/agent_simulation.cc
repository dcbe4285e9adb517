#include "tests/rpc/simulation/agent_simulation.h"

#include <algorithm>

#include "base/error.h"

namespace retort::rpc::simulation {
namespace {

using namespace std::chrono_literals;

// Of simulated time, for all of a run.
constexpr milliseconds kRun{10min};
constexpr milliseconds kReached{60s}, kEnded{20s};

Network::Options network_options(uint64_t seed) {
  std::mt19937_64 random(~seed);
  return {.latency_ms = static_cast<int64_t>(random() % 8),
          .bytes_per_ms = random() % 2 == 0 ? uint64_t{1} << 40 : 10'000 + random() % 100'000};
}

}  // namespace

AgentSimulation::AgentSimulation(uint64_t seed)
    : world_(seed, network_options(seed)),
      calm_(world_.scheduler.one_of(3)),
      heartbeat_(100ms + world_.scheduler.up_to(50)),
      peer_timeout_(2 * heartbeat_ + world_.scheduler.up_to(100)) {
  world_.ordered = calm_ && world_.scheduler.pick(3) > 0;
  if (world_.ordered) max_calls_ = static_cast<int64_t>(2 + world_.scheduler.pick(4));
}

std::string AgentSimulation::run() {
  Scheduler& scheduler = world_.scheduler;
  scheduler.spawn([this] { conduct(); }, nullptr);
  const bool ended = scheduler.run([&] { return ended_ || !world_.failure().empty(); }, kRun);
  if (!ended) world_.fail("something waits for ever");
  return world_.failure();
}

RpcOptions AgentSimulation::options() {
  Scheduler& random = world_.scheduler;
  RpcOptions rpc;
  rpc.timeout = 1h;
  rpc.heartbeat_interval = heartbeat_;
  rpc.peer_timeout = peer_timeout_;
  rpc.max_inflight_bytes = ByteSize{80'000 + random.pick(random.one_of(2) ? 200'000 : 2'000'000)};
  rpc.max_inflight_calls =
      max_calls_.value_or(static_cast<int64_t>(1 + random.pick(random.one_of(2) ? 4 : 20)));
  rpc.receive_budget = ByteSize{80'000 + random.pick(random.one_of(2) ? 1'000'000 : 10'000'000)};
  rpc.max_message_bytes = ByteSize{2'000'000};
  return rpc;
}

std::shared_ptr<Process> AgentSimulation::start(const std::string& name, uint64_t restart) {
  const size_t num_peers = servers_.size() + clients_.size();
  const size_t queue = max_calls_ ? num_peers * static_cast<size_t>(*max_calls_) : size_t{1} << 20;
  return std::make_shared<Process>(
      world_, Process::Options{.name = name, .restart = restart, .rpc = options(), .queue = queue});
}

std::shared_ptr<Process> AgentSimulation::any() {
  return processes_[world_.scheduler.pick(processes_.size())];
}

std::shared_ptr<Process>& AgentSimulation::named(const std::string& name) {
  return *std::find_if(processes_.begin(), processes_.end(),
                       [&](const auto& process) { return process->name() == name; });
}

void AgentSimulation::conduct() {
  Scheduler& random = world_.scheduler;
  for (uint64_t i = 0; i <= random.pick(2); ++i)
    servers_.push_back("server/" + std::to_string(i));
  for (uint64_t i = 0; i <= random.pick(3); ++i)
    clients_.push_back("client/" + std::to_string(i));
  for (const auto* names : {&servers_, &clients_})
    for (const auto& name : *names)
      processes_.push_back(start(name, 0));
  for (const auto& client : clients_)
    for (const auto& server : servers_)
      named(client)->links().keep(server, Deadline::after(10s));

  begin_callers();
  random.spawn([this] { watch(); }, nullptr);
  if (!calm_) injure();
  if (!world_.wait_until([&] { return num_callers_ == 0; }, kReached, "a call does not end"))
    return;
  world_.network.heal();
  faults_over_ = callers_done_ = true;

  for (const auto& client : clients_)
    for (const auto& server : servers_)
      check_reached(*named(client), server);
  if (world_.failure().empty()) end();
}

void AgentSimulation::begin_callers() {
  Scheduler& random = world_.scheduler;
  // The lower number of both ends holds.
  const bool room_for_two = std::all_of(
      processes_.begin(), processes_.end(),
      [](const auto& process) { return process->options().rpc.max_inflight_calls > 1; });
  for (const auto& process : std::vector(processes_)) {
    const bool server = process->name().starts_with("server");
    if (server && random.pick(4) > 0) continue;
    for (uint64_t i = 0; i <= random.pick(3); ++i) {
      ++num_callers_;
      random.spawn(
          [this, process, num = 1 + static_cast<int64_t>(random.pick(8))] {
            call_again_and_again(process, num);
          },
          &process->host());
    }
    if (!server && room_for_two && random.one_of(2))
      random.spawn([this, process] { hold_one(process, servers_.front()); }, &process->host());
  }
}

// Nobody stays connected to somebody who is silent.
void AgentSimulation::watch() {
  while (!ended_ && world_.failure().empty()) {
    const std::string deaf = world_.network.find_deaf(2 * peer_timeout_ + 50ms);
    if (!deaf.empty()) world_.fail(deaf + " does not notice that a peer is silent");
    world_.scheduler.sleep(50ms);
  }
}

// As many calls at a time as there may be, and large messages in both directions.
void AgentSimulation::check_reached(Process& client, const std::string& server) {
  PeerLinks& links = client.links();
  const auto ask = [&](int64_t bytes, int64_t reply_bytes) {
    WorkRequest request{.id = next_call_++, .reply_bytes = reply_bytes};
    request.data = world_.memory({}, bytes).tensor;
    return client.agent().call(server, kWork, request, {.timeout = 10s});
  };
  try {
    ask_until_up(&links, {server}, Deadline::after(kReached), [&] {
      std::vector<Future<WorkReply>> replies;
      for (int64_t i = 0; i < client.options().rpc.max_inflight_calls; ++i)
        replies.push_back(ask(10, 10));
      replies.push_back(ask(500'000, 500'000));
      for (auto& reply : replies)
        reply.get(Deadline::after(kReached));
      return 0;
    });
  } catch (const Error& error) {
    world_.fail(client.name() + " does not reach " + server + " any more: " + error.what());
  }
  world_.wait_until([&] { return client.agent().stats(server).inflight_bytes == 0; }, kEnded,
                    "bytes of " + client.name() + " stay in flight to " + server);
}

void AgentSimulation::end() {
  std::vector<std::shared_ptr<Process>> all = processes_;
  all.insert(all.end(), former_.begin(), former_.end());
  size_t stopped = 0;
  for (const auto& process : all)
    world_.scheduler.spawn(
        [this, process, &stopped] {
          world_.scheduler.sleep(world_.scheduler.up_to(200));
          process->stop();
          ++stopped;
        },
        nullptr);
  if (!world_.wait_until([&] { return stopped == all.size(); }, kEnded, "an agent does not end"))
    return;
  all.clear();
  processes_.clear();
  former_.clear();
  // This thread and the one that watches.
  world_.wait_until([&] { return world_.scheduler.num_threads() <= 2; }, kEnded,
                    "a thread does not end");
  world_.wait_until([&] { return world_.network.num_ends() == 0; }, kEnded, "a session is left");
  ended_ = true;
}

}  // namespace retort::rpc::simulation
