#include "tests/roles/simulation/scale_simulation.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process_name.h"
#include "base/sizes.h"
#include "roles/generator/weight_broadcast.h"
#include "roles/generator/weight_relay.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"
#include "rpc/rendezvous/store_state.h"
#include "tests/rpc/simulation/world.h"

namespace retort::roles::simulation {
namespace {

using namespace std::chrono_literals;
using rpc::simulation::Host;
using rpc::simulation::milliseconds;
using rpc::simulation::Network;
using rpc::simulation::World;
namespace store = rpc::rendezvous;

constexpr milliseconds kLimit{1h};  // simulated

std::string teacher_name(int64_t i) { return process_name("teacher", i); }
std::string generator_name(int64_t i) { return process_name("generator", i); }

std::vector<std::string> address_keys(int64_t teachers) {
  std::vector<std::string> keys;
  for (int64_t i = 0; i < teachers; ++i)
    keys.push_back("gsm8k-distill/teacher/0/address/" + std::to_string(i));
  return keys;
}

std::unique_ptr<rpc::Agent> make_agent(const std::shared_ptr<Host>& host,
                                       Duration heartbeat = Duration(1000)) {
  rpc::RpcOptions rpc;
  rpc.heartbeat_interval = heartbeat;
  return std::make_unique<rpc::Agent>(rpc::Agent::Options{
      .name = host->name(), .secret = "the secret of a simulation", .rpc = rpc, .network = host});
}

// Runs `body` on a simulated thread to its end.
void run(World& world, const std::function<void()>& body) {
  bool ended = false;
  world.scheduler.look_only_where_work_is();
  world.scheduler.spawn(
      [&] {
        body();
        ended = true;
      },
      nullptr);
  if (!world.scheduler.run([&] { return ended; }, kLimit))
    throw Error(ErrorCode::kTimeout, "a simulation does not end");
}

double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

}  // namespace

LookUpCost look_up(int64_t students, int64_t teachers, int64_t at_once) {
  LookUpCost cost;
  const std::vector<std::string> keys = address_keys(teachers);
  std::vector<size_t> first(to_size(students), 0);  // key that a student waits for
  std::vector<int64_t> answered;                    // students, whose turn it is
  store::StoreState state({}, [&](uint64_t connection, const store::StoreReply& reply) {
    if (reply.status != store::StoreStatus::kDone)
      throw Error(ErrorCode::kResourceExhausted, "the store refuses a look-up: " + reply.text);
    if (connection >= to_size(students)) return;  // a teacher's
    cost.answered_bytes += store::frame_of(reply).size();
    answered.push_back(static_cast<int64_t>(connection));
  });
  const auto now = Deadline::Clock::now();
  const auto publish = [&](size_t teacher) {
    state.handle(
        to_size(students) + teacher,
        {.op = store::StoreOp::kSet, .keys = {keys[teacher]}, .values = {"10.20.30.40:41234"}},
        now);
  };
  const auto ask = [&](int64_t student, store::StoreOp op, std::vector<std::string> of) {
    store::StoreRequest request{
        .op = op, .keys = std::move(of), .values = {}, .timeout_ms = kLimit.count()};
    ++cost.requests;
    cost.asked_bytes += store::frame_of(request).size();
    state.handle(static_cast<uint64_t>(student), std::move(request), now);
  };

  // As recipes/run/rank/role_connections.cc does: they wait for some at a time, then check and get
  // all.
  // A student that has been answered asks for what is next.
  std::vector<int64_t> stage(to_size(students), 0);
  const auto go_on = [&](int64_t student) {
    size_t& from = first[to_size(student)];
    if (from < keys.size()) {
      const size_t end = std::min(from + to_size(at_once), keys.size());
      std::vector<std::string> some(keys.begin() + static_cast<ptrdiff_t>(from),
                                    keys.begin() + static_cast<ptrdiff_t>(end));
      from = end;
      return ask(student, store::StoreOp::kWait, std::move(some));
    }
    if (stage[to_size(student)]++ == 0) return ask(student, store::StoreOp::kCheck, keys);
    if (stage[to_size(student)] == 2) ask(student, store::StoreOp::kGet, keys);
  };
  const auto go_on_all = [&] {
    while (!answered.empty()) {
      const int64_t student = answered.back();
      answered.pop_back();
      go_on(student);
    }
  };

  // Nobody is there when the students ask.
  for (int64_t student = 0; student < students; ++student)
    go_on(student);
  for (size_t teacher = 0; teacher < keys.size(); ++teacher) {
    publish(teacher);
    go_on_all();
  }
  return cost;
}

SessionCost connect(int64_t sampled_students, int64_t teachers, Network::Options network,
                    Duration heartbeat) {
  World world(1, network);
  SessionCost cost;
  run(world, [&] {
    std::vector<std::unique_ptr<rpc::Agent>> agents;
    std::vector<rpc::PeerLinks::Place> places;
    for (int64_t i = 0; i < teachers; ++i) {
      agents.push_back(make_agent(world.network.add_host(teacher_name(i)), heartbeat));
      places.push_back({.peer = teacher_name(i), .address = agents.back()->address()});
    }

    // All students at once.
    std::list<rpc::PeerLinks> links;
    size_t connected = 0;
    const milliseconds start = world.scheduler.elapsed();
    for (int64_t i = 0; i < sampled_students; ++i) {
      const auto host = world.network.add_host(process_name("student", i));
      agents.push_back(make_agent(host, heartbeat));
      rpc::PeerLinks& mine = links.emplace_back(
          *agents.back(),
          rpc::PeerLinks::Options{.find = [](const std::string& peer, Deadline) -> std::string {
            throw Error(ErrorCode::kUnavailable, "nobody looks for " + peer);
          }});
      world.scheduler.spawn(
          [&, &mine = mine] {
            mine.keep_all(places, Deadline::after(kLimit));
            ++connected;
          },
          host.get());
    }
    while (connected < static_cast<size_t>(sampled_students))
      world.scheduler.sleep(1ms);
    cost.seconds = seconds(world.scheduler.elapsed() - start);

    for (size_t i = static_cast<size_t>(teachers); i < agents.size(); ++i)
      cost.sessions += agents[i]->peers().size();
    const Network::Traffic& traffic = world.network.traffic();
    cost.dials = traffic.dials;
    cost.control_bytes = traffic.control_bytes;
    cost.data_bytes = traffic.data_bytes;
    cost.core_seconds = 1e-6 * static_cast<double>(traffic.worked.count());

    links.clear();
    for (const auto& agent : agents)
      agent->close();
    for (const auto& agent : agents)
      agent->join();
  });
  return cost;
}

namespace {

// As a generator's rank takes buckets and passes them on; it keeps them, and draws nothing.
struct Replica {
  std::unique_ptr<rpc::Agent> agent;
  std::map<int64_t, WeightBucket> staged;

  void serve(const std::shared_ptr<rpc::HandlerQueue>& queue) {
    agent->serve(kWeightsBucket, queue, [this](WeightBucket bucket, const rpc::CallContext&) {
      const int64_t index = bucket.index;
      staged[index] = std::move(bucket);
      return Empty{};
    });
    agent->serve(kWeightsPass, queue,
                 [this, passer = std::make_shared<WeightRelay>(*agent)](const PassWeights& request,
                                                                        const rpc::CallContext&) {
                   const auto found = staged.find(request.index);
                   return passer->pass(request, found == staged.end()
                                                    ? std::nullopt
                                                    : std::optional(found->second));
                 });
  }
};

WeightBroadcast::Buckets make_buckets(int64_t num_buckets, int64_t bucket_bytes) {
  WeightBroadcast::Buckets buckets(1);
  for (int64_t i = 0; i < num_buckets; ++i)
    buckets[0].push_back({.version = 1,
                          .index = i,
                          .parts = {{.name = "weight",
                                     .begin = {i},
                                     .values = at::zeros({bucket_bytes}, at::kByte)}},
                          .origin = {}});
  return buckets;
}

uint64_t sent_by(const rpc::Agent& agent) {
  uint64_t bytes = 0;
  for (const std::string& peer : agent.peers())
    bytes += agent.stats(peer).bytes_sent;
  return bytes;
}

}  // namespace

PushCost push(int64_t replicas, int64_t num_buckets, int64_t bucket_bytes, bool pass_on,
              Network::Options network) {
  World world(1, network);
  PushCost cost{.model_bytes = static_cast<uint64_t>(num_buckets * bucket_bytes)};
  run(world, [&] {
    // One thread runs the handlers of all.
    const auto queue = std::make_shared<rpc::HandlerQueue>(size_t{1} << 20);
    world.scheduler.spawn(
        [queue] {
          while (!queue->closed())
            if (auto job = queue->pop(Deadline::after(kLimit))) (*job)();
        },
        nullptr);

    const auto student = make_agent(world.network.add_host("student/0"));
    std::list<Replica> all;
    std::vector<WeightBroadcast::Peer> peers;
    for (int64_t i = 0; i < replicas; ++i) {
      Replica& replica = all.emplace_back();
      replica.agent = make_agent(world.network.add_host(generator_name(i)));
      replica.serve(queue);
      student->connect(generator_name(i), replica.agent->address(), Deadline::after(kLimit));
      peers.push_back({generator_name(i), 0});
    }

    const WeightBroadcast::Buckets buckets = make_buckets(num_buckets, bucket_bytes);
    const milliseconds start = world.scheduler.elapsed();
    const uint64_t messages = world.network.traffic().data_messages;
    WeightBroadcast spread(*student,
                           {.version = 1,
                            .peers = peers,
                            .pass_on = pass_on,
                            .patience = Duration(kLimit),
                            .passes = {}},
                           buckets);
    for (int64_t i = 0; i < num_buckets; ++i)
      spread.sealed(0);
    spread.wait_all();

    cost.seconds = seconds(world.scheduler.elapsed() - start);
    cost.messages = world.network.traffic().data_messages - messages;
    cost.sent_by_student = sent_by(*student);
    for (const Replica& replica : all) {
      cost.most_sent_by_replica = std::max(cost.most_sent_by_replica, sent_by(*replica.agent));
      cost.sessions += replica.agent->peers().size() - 1;  // without the student's
      cost.arrived += replica.staged.size() == static_cast<size_t>(num_buckets) ? 1 : 0;
    }
    cost.sessions /= 2;  // each has two ends

    student->close();
    for (const Replica& replica : all)
      replica.agent->close();
    student->join();
    for (const Replica& replica : all)
      replica.agent->join();
    queue->close();
  });
  return cost;
}

}  // namespace retort::roles::simulation
